"""Operations over HTTP, and events as they happen."""
