"""Errors that occur when bindings, identities or the state of a connector are stored."""

from __future__ import annotations

from retinue.domain.errors import Conflict, Invalid


class ConnectorStateInvalid(Invalid):
    """A connector tried to store a key or value that is too long, or has characters that cannot be stored."""

    code = "connector.state_invalid"

    def __init__(self, connector: str, *, key_chars_max: int, value_chars_max: int) -> None:
        super().__init__(
            f"the connector '{connector}' cannot store this value",
            because=f"a key must have 1 to {key_chars_max} characters, and a value at most {value_chars_max:,}; "
            "neither may contain NUL",
            try_this="shorten the key, or divide the value among several keys",
        )


class IdentityTaken(Conflict):
    """The platform id is already linked to another person."""

    code = "identity.taken"

    def __init__(self, service: str, *, person: str) -> None:
        super().__init__(
            f"this {service} id is already linked to {person}",
            because="an id can be linked to only one person",
            try_this=f"unlink it from {person} first: retinue identity unlink {service} ID",
        )


class TooManyIdentities(Conflict):
    """The number of identities has reached the limit."""

    code = "identity.too_many"

    def __init__(self, *, count_max: int) -> None:
        super().__init__(
            "too many identities",
            because=f"the limit is {count_max:,}",
            try_this="unlink one that is no longer used: retinue identity unlink SERVICE ID",
        )


class BindingExists(Conflict):
    """Another binding already applies to exactly the same channel or channels."""

    code = "binding.exists"

    def __init__(self, *, agent: str, binding: str) -> None:
        super().__init__(
            f"{agent} is already bound to this channel",
            because=f"binding {binding} applies to exactly the same channels",
            try_this="replace that binding with `retinue binding set`, or make this one apply to fewer channels",
        )


class BindingAgentsInvalid(Invalid):
    """A binding has too many agents, or has the same agent twice."""

    code = "binding.agents_invalid"

    def __init__(self, *, count_max: int) -> None:
        super().__init__(
            "invalid agents for a binding",
            because=f"a binding can have at most {count_max} agents, and each of them only once",
            try_this=f"list at most {count_max} agents, and each of them once",
        )


class TooManyBindings(Conflict):
    """The number of bindings has reached the limit."""

    code = "binding.too_many"

    def __init__(self, *, count_max: int) -> None:
        super().__init__(
            "too many bindings",
            because=f"the limit is {count_max:,}",
            try_this="bind a whole account, guild or team instead of each of its channels",
        )
