"""Whether each argument of a call is explained by trusted words."""
