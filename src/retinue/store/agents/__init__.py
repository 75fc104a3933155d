"""Store what belongs to agents: credentials, grants, approved content, file trust and the audit log."""
