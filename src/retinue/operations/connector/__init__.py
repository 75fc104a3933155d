"""Operations on connectors, bindings, access requests, identities and poison messages."""
