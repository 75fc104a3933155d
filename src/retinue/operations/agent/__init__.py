"""Operations on agents, their files and their system prompts."""
