"""Operations on people, tokens, notifications and preferences."""
