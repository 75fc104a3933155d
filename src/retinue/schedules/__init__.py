"""Schedules and heartbeats: when a message is sent, the gates that can prevent it, and the files that define them."""
