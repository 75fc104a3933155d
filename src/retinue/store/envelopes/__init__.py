"""Envelopes, outcomes, dead letters and attachments."""
