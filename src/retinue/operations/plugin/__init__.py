"""Operations of the noun `plugin`."""
