"""The command line. It imports only the standard library and itself, so that a command starts fast."""
