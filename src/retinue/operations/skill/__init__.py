"""Operations of the noun `skill`."""
