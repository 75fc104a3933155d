"""Operations of the noun `envelope`."""
