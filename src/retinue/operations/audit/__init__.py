"""Operations of the noun `audit`."""
