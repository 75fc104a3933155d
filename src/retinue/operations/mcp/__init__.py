"""Operations of the noun `mcp`."""
