"""Operations of the noun `run`."""
