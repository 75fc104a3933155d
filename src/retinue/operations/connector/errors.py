"""Errors of the operations on connectors, bindings, pairing requests and identities."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.errors import Conflict, Invalid, NotFound
from retinue.domain.shared_errors import shorten_name

# --- connectors ---


class ConnectorsUnavailable(NotFound):
    """This server has no support for connectors."""

    code = "connector.unavailable"

    def __init__(self) -> None:
        super().__init__(
            "this server has no connectors",
            because="it was started without connector support",
            try_this="start it with: retinue run",
        )


class ConnectorNameInvalid(Invalid):
    """The name is not valid for a connector. `because` is the reason."""

    code = "connector.name_invalid"

    def __init__(self, name: str, *, because: str) -> None:
        super().__init__(
            f"invalid name for a connector: '{shorten_name(name)}'",
            because=because,
            try_this="choose another name, for example family-bot",
        )


class ConnectorExists(Conflict):
    """Another connector already has this name."""

    code = "connector.exists"

    def __init__(self, name: str, *, platform: str) -> None:
        super().__init__(
            f"a connector named '{name}' already exists",
            because="the name of a connector must be unique",
            try_this=f"choose another name: retinue connector add {platform} --name NAME",
        )


class ConnectorSecretByAgent(Invalid):
    """An agent sent the text of a secret, which would be stored in its history."""

    code = "connector.secret_by_agent"

    def __init__(self) -> None:
        super().__init__(
            "an agent cannot send the text of a secret",
            because="the secret would be stored in the history of the agent's session",
            try_this="in `settings`, give the environment variable or the file that contains the secret",
        )


class ConnectorSecretUnknown(Invalid):
    """The platform has no secret with this name."""

    code = "connector.secret_unknown"

    def __init__(self, name: str, *, platform: str, known: Sequence[str]) -> None:
        super().__init__(
            f"a {platform} connector has no secret named '{shorten_name(name)}'",
            because=f"its secrets are {', '.join(known)}" if known else "it has no secrets",
            try_this="list the platforms and what they need: retinue connector platforms",
        )


class ConnectorSecretInvalid(Invalid):
    """The value cannot be a secret. The error does not show the value."""

    code = "connector.secret_invalid"

    def __init__(self, name: str, *, chars_max: int) -> None:
        super().__init__(
            f"invalid value for the secret {name}",
            because=f"it must be one line of 1 to {chars_max:,} characters",
            try_this="copy it again, without the text around it",
        )


class ConnectorRejected(Invalid):
    """The sign-in test of a new connector failed, so it was not added."""

    code = "connector.rejected"

    def __init__(self, name: str, sentence: str, *, because: str, try_this: str) -> None:
        super().__init__(
            f"the connector '{name}' was not added: {sentence}",
            because=because or "the platform did not accept its settings",
            try_this=try_this or "correct the settings, or skip the sign-in test with --no-check",
        )


# --- bindings ---


class BindingNotFound(NotFound):
    """No binding has this id."""

    code = "binding.not_found"

    def __init__(self, id_: str) -> None:
        super().__init__(
            f"no binding '{shorten_name(id_)}'",
            because="it was removed or replaced, or never existed",
            try_this="list the bindings: retinue binding list",
        )


class BindingMatchInvalid(Invalid):
    """A field that selects the channels of a binding is invalid."""

    code = "binding.match_invalid"

    def __init__(self, field: str, value: str, *, chars_max: int) -> None:
        super().__init__(
            f"invalid value for {field}: {value[:64]!r}",
            because=f"a field must have at most {chars_max} characters, and the connector must not be empty",
            try_this="copy it from `retinue connector list`, or from a message in that channel",
        )


# --- pairing requests and identities ---


class PairingNotFound(NotFound):
    """No pending access request has this code or id."""

    code = "pairing.not_found"

    def __init__(self, code_or_id: str) -> None:
        super().__init__(
            f"no access request with the code or id '{shorten_name(code_or_id)}'",
            because="the code or id is mistyped, or the request has expired or was already decided",
            try_this="list the access requests: retinue pairing list",
        )


class PairingClosed(Conflict):
    """The access request has already been decided, or has expired."""

    code = "pairing.closed"

    def __init__(self) -> None:
        super().__init__(
            "this access request is no longer open",
            because="it was already decided, or its code has expired",
            try_this="ask the sender to write again: they get a new code",
        )


class SenderNotAdmitted(NotFound):
    """No sender with this id was admitted by pairing."""

    code = "pairing.not_admitted"

    def __init__(self, sender: str, *, connector: str) -> None:
        super().__init__(
            f"no sender '{shorten_name(sender)}' was admitted on '{shorten_name(connector)}' by pairing",
            because="senders in the settings, and those linked to a person, are not admitted by pairing",
            try_this="list the admitted senders: retinue pairing list",
        )


class IdentityNotFound(NotFound):
    """This platform id is not linked to a person."""

    code = "identity.not_found"

    def __init__(self, id_: str, *, platform: str) -> None:
        super().__init__(
            f"no identity '{shorten_name(id_)}' on {shorten_name(platform)}",
            because="this id is not linked to a person",
            try_this="list the identities: retinue identity list",
        )


class IdentityInvalid(Invalid):
    """The platform or the id of an identity is empty or too long, or cannot be stored."""

    code = "identity.invalid"

    def __init__(self, *, platform_chars_max: int, id_chars_max: int) -> None:
        super().__init__(
            "invalid identity",
            because=f"the platform must have 1 to {platform_chars_max} characters, and the id 1 to {id_chars_max}",
            try_this="for example: retinue identity link maria telegram --id 4711",
        )


class IdentityIsUsername(Invalid):
    """A username was given instead of the permanent id."""

    code = "identity.is_username"

    def __init__(self, username: str) -> None:
        super().__init__(
            f"{username[:64]!r} is a username, not an id",
            because="someone else can take over a username, and the server would treat them as the linked person",
            try_this="link the permanent id: `retinue pairing list` shows it after the person has written",
        )
