"""What every step decides: step records, the ledger, weights, the order of the samples."""
