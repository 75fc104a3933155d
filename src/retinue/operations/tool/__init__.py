"""Operations on tools."""
