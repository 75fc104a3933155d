"""Operations of the noun `person`."""
