"""Schedules and heartbeats: when an envelope is sent, the gates that decide, and their files."""
