"""Network code that several packages use: an HTTP client and message signatures."""
