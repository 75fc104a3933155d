"""Runs, their steps and costs, approvals and delegations."""
