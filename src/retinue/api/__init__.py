"""The HTTP API: operations, event streams, webhooks, MCP and the web app's files."""
