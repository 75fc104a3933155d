"""The wire formats of model providers: how a request is written and a reply is read."""
