"""Operations of the noun `server`."""
