"""Horovod: the ring of one generation is built, used, closed and, if need be, broken here."""
