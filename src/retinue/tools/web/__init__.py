"""Pages, searches and a browser: all that goes out on an agent's word passes one guard."""
