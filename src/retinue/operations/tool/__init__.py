"""Operations of the noun `tool`."""
