"""The ledger: sums and equations over the complete store."""
