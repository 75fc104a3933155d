"""Envelopes on their way out: deliveries, retries, previews and webhooks."""
