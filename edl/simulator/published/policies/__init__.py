"""Cluster policies of papers, one a file, that exist to be compared with the product's."""
