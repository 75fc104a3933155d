"""Operations of the noun `approval`."""
