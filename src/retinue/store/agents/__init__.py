"""Store data about agents: definitions, credentials, grants, approved content, file trust and the audit log."""
