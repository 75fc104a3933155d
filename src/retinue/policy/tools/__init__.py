"""Which tool calls are allowed, asked about or denied."""
