"""Offers the tools of MCP servers to agents: connections, approval of tool lists, and limits on what servers return."""
