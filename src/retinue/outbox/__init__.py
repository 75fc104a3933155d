"""Sends envelopes to channels, external agents and webhooks, and retries failed deliveries."""
