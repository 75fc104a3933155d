"""MCP servers as tools: how they are reached, what is believed of them, and when they are not used."""
