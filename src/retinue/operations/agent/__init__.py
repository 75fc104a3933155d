"""Operations of the noun `agent`."""
