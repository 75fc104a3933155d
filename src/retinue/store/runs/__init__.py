"""Store runs, their steps and costs, approvals and delegations."""
