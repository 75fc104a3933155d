"""Agents, their credentials and grants, approved content, file trust and the audit log."""
