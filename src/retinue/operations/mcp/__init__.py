"""Operations on MCP servers, and retinue's own MCP server."""
