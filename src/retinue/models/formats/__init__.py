"""The wire formats of model providers: how a request is encoded and a reply is read."""
