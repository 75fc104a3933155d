"""Operations on sessions and their slash commands."""
