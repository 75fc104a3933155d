"""Operations of the noun `config`."""
