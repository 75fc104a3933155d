"""Builds, starts and stops every part of the server. No other package connects the parts."""
