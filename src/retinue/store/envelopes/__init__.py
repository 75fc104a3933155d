"""Store envelopes, their outcomes, dead letters and attachments."""
