"""Operations of the noun `session`."""
