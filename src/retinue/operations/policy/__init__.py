"""Operations of the noun `policy`."""
