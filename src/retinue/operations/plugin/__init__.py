"""Operations on plugins."""
