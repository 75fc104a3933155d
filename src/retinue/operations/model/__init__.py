"""Operations of the noun `model`."""
