"""Who may write, see and reach what."""
