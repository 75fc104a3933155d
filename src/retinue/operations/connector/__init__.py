"""Operations of the noun `connector`."""
