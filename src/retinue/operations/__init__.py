"""Operations: the API calls of the server, each declared once for HTTP, CLI, tools and docs."""
