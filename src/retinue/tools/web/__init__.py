"""The web tools: fetch, search and browser. One URL guard checks every outgoing request."""
