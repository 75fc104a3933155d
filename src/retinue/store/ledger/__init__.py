"""The ledger: sums and equations over the whole store."""
