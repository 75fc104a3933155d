"""Operations on delegations and subagents."""
