"""Decide about one step: its step records, the ledger, its weights, the order of the samples."""
