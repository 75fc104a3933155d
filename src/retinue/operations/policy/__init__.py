"""Operations on tool policy, tools and grants."""
