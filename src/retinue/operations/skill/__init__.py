"""Operations on skills and hooks."""
