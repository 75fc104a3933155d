"""Language models: small protocols over all providers."""
