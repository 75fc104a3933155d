"""Errors that several packages raise: one class for each code, with its sentence, reason and next step."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound, RetinueError, TooLarge

NAME_SHOWN_CHARS = 80


def shorten_name(name: str) -> str:
    """Shorten a name from a request, so that an error can show it."""
    return name if len(name) <= NAME_SHOWN_CHARS else f"{name[: NAME_SHOWN_CHARS - 1]}…"


# --- not found ---


class AgentNotFound(NotFound):
    """No agent has this name, or the caller may not see it."""

    code = "agent.not_found"

    def __init__(self, name: str, *, try_this: str = "") -> None:
        super().__init__(
            f"no agent named '{shorten_name(name)}'", try_this=try_this or "list the agents: retinue agent list"
        )


class PersonNotFound(NotFound):
    """No person has this name."""

    code = "person.not_found"

    def __init__(self, name: str, *, because: str = "") -> None:
        super().__init__(
            f"no person named '{shorten_name(name)}'",
            because=because,
            try_this="list the people: retinue person list",
        )


class SessionNotFound(NotFound):
    """No session has this id or name, or the caller may not see it.

    `agent` is set if the session must belong to that agent.
    """

    code = "session.not_found"

    def __init__(self, session: str, *, agent: str = "", because: str = "", try_this: str = "") -> None:
        owner = f"{agent} has no session" if agent else "no session"
        super().__init__(
            f"{owner} '{shorten_name(session)}'",
            because=because,
            try_this=try_this or "list the sessions: retinue session list",
        )


class ConnectorNotFound(NotFound):
    """No connector has this name."""

    code = "connector.not_found"

    def __init__(self, name: str, *, because: str = "") -> None:
        super().__init__(
            f"no connector named '{shorten_name(name)}'",
            because=because,
            try_this="list the connectors: retinue connector list",
        )


class McpServerNotFound(NotFound):
    """The settings have no MCP server with this name."""

    code = "mcp.not_found"

    def __init__(self, name: str, *, because: str = "") -> None:
        super().__init__(
            f"no MCP server named '{shorten_name(name)}'",
            because=because or f"the settings have no section [mcp.{shorten_name(name)}]",
            try_this="list the MCP servers: retinue mcp list",
        )


class ProviderNotFound(NotFound):
    """No model provider has this name."""

    code = "model.provider_unknown"

    def __init__(self, name: str, *, known: Sequence[str]) -> None:
        super().__init__(
            f"no model provider named '{shorten_name(name)}'",
            because=f"the providers of this server are {', '.join(known)}",
            try_this=f"add it to retinue.toml: [providers.{shorten_name(name)}], with its `url`",
        )


class AttachmentNotFound(NotFound):
    """No stored attachment has this hash."""

    code = "attachment.not_found"

    def __init__(self, hash_: str, *, because: str) -> None:
        super().__init__(
            f"no attachment {hash_[:8]}",
            because=because,
            try_this="copy the hash from the envelope or record that names it, or ask for the file again",
        )


# --- invalid ---


class KeyInvalid(Invalid):
    """The idempotency key cannot be stored."""

    code = "key.invalid"

    def __init__(self, *, chars_max: int) -> None:
        super().__init__(
            "invalid idempotency key",
            because=f"it must have 1 to {chars_max} characters, without NUL or lone surrogates",
            try_this="use a random key; if you retry the request, use the same key again",
        )


class CursorInvalid(Invalid):
    """The text is not a cursor that the server returned."""

    code = "cursor.invalid"

    def __init__(self, cursor: str, *, because: str, try_this: str) -> None:
        super().__init__(f"invalid cursor '{shorten_name(cursor)}'", because=because, try_this=try_this)


class TimeRangeInvalid(Invalid):
    """A time range ends before it starts."""

    code = "time.inverted"

    def __init__(self, start: str, end: str) -> None:
        super().__init__(
            f"{start} is not before {end}",
            because="a time range must start before it ends",
            try_this="swap the two times, or leave one out",
        )


class TextUnstorable(Invalid):
    """The text has characters that some of the supported databases cannot store."""

    code = "text.unstorable"

    def __init__(self, field: str) -> None:
        super().__init__(
            f"{field} is not valid text",
            because="it is not UTF-8, or has NUL bytes or lone surrogates, which cannot be stored",
            try_this="remove these bytes, or send the data as an attachment",
        )


class CredentialKeyInvalid(Invalid):
    """The value cannot be a provider's API key."""

    code = "credential.key_invalid"

    def __init__(self, credential: str, *, chars_max: int | None = None) -> None:
        length = f"1 to {chars_max:,} " if chars_max is not None else ""
        super().__init__(
            f"invalid key for {credential}",
            because=f"a key consists of {length}ASCII letters, digits and punctuation characters, without spaces",
            try_this="copy the key again, without the text around it",
        )


# --- limits ---


class AttachmentTooLarge(TooLarge):
    """One attachment exceeds the limit."""

    code = "attachment.too_large"

    def __init__(self, name: str, *, bytes_max: int) -> None:
        label = f"attachment '{shorten_name(name)}'" if name else "the attachment"
        super().__init__(
            f"{label} is too large",
            because=f"the limit is {bytes_max:,} bytes",
            try_this="send a smaller file, or a link to it",
        )


class TooManyAttachments(TooLarge):
    """One envelope has more attachments than the limit."""

    code = "attachments.too_many"

    def __init__(self, count: int, *, count_max: int) -> None:
        super().__init__(
            f"too many attachments: {count}",
            because=f"the limit is {count_max} for each envelope",
            try_this="send several envelopes",
        )


class RequestTooLarge(TooLarge):
    """The HTTP request body exceeds the limit."""

    code = "request.too_large"

    def __init__(self, *, bytes_max: int) -> None:
        super().__init__(
            "the request is too large", because=f"the limit is {bytes_max:,} bytes", try_this="send less in one request"
        )


class SettingsFileTooLarge(TooLarge):
    """The settings file would exceed the limit."""

    code = "config.too_large"

    def __init__(self, *, bytes_max: int) -> None:
        super().__init__(
            "the settings file would be too large",
            because=f"the limit is {bytes_max:,} bytes",
            try_this="move part of it into another file, and `include` that file",
        )


class TooManyHeartbeatTasks(TooLarge):
    """A heartbeat has more tasks than the limit, or a request selects more."""

    code = "heartbeat.too_many"

    def __init__(self, *, tasks_max: int) -> None:
        super().__init__(
            "too many heartbeat tasks",
            because=f"the limit is {tasks_max}",
            try_this="remove some tasks, or combine several tasks into one",
        )


# --- not allowed, conflict ---


class PermissionDenied(NotAllowed):
    """The caller's permission level, or a rule, does not allow the request."""

    code = "permission.denied"

    def __init__(self, action: str, *, because: str) -> None:
        super().__init__(f"you cannot {action}", because=because, try_this="ask the owner of this server")


class DelegationRefused(NotAllowed):
    """An agent may not delegate to this agent, or the maximum delegation depth has been reached.

    `setting` is the setting that decides.
    """

    code = "delegation.refused"

    def __init__(self, agent: str, target: str, *, because: str, setting: str = "") -> None:
        super().__init__(
            f"{agent} cannot delegate to {target}",
            because=because,
            try_this=f"ask the owner to change `{setting}`, or do the work yourself" if setting else "",
        )


class KeyReused(Conflict):
    """The idempotency key belongs to an earlier, different request."""

    code = "key.reused"

    def __init__(self, key: str, *, because: str) -> None:
        super().__init__(
            f"the idempotency key '{shorten_name(key)}' was already used",
            because=because,
            try_this="use a new key for a new request",
        )


class NotSignedIn(RetinueError):
    """The request has no valid token or cookie."""

    code = "auth.not_signed_in"

    def __init__(self, *, because: str = "", try_this: str = "") -> None:
        super().__init__(
            "not signed in: the token is missing or invalid",
            because=because,
            try_this=try_this or "use the token in RETINUE_HOME/owner-token, or create one: retinue token create",
        )
