"""The ledger: totals of everything that was accepted, and equations that prove that nothing was lost."""
