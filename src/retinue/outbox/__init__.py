"""Sends envelopes out: deliveries to channels, retries, previews and webhooks."""
