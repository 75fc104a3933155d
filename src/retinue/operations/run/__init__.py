"""Operations on runs."""
