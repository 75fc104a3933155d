"""MCP servers as tools: connections, approval of tool lists, and limits on what servers return."""
