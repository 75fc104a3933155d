"""Decisions about which tool calls are allowed, need approval or are denied."""
