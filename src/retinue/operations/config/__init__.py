"""Operations on the settings, and the `gateway` tool."""
