"""Operations on models, credentials and usage."""
