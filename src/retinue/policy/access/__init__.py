"""Who may write, see and access what."""
