"""Operations of the noun `delegation`."""
