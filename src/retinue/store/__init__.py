"""What survives: transactions as plain functions."""
