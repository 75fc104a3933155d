"""Errors of accepting a message: invalid envelopes, unsigned requests and callbacks that cannot be matched."""

from __future__ import annotations

from retinue.domain.errors import Conflict, Invalid, NotFound, RetinueError, TooLarge
from retinue.domain.shared_errors import shorten_name

# --- envelopes ---


class SourceInvalid(Invalid):
    """A connector passed a source or a conversation key that cannot be stored."""

    code = "source.invalid"

    def __init__(self, *, bytes_max: int) -> None:
        super().__init__(
            "invalid source of an envelope",
            because=f"the source or the conversation key has invalid characters or more than {bytes_max} bytes",
            try_this="report this as a bug in the connector",
        )


class EnvelopeTextTooLarge(TooLarge):
    """The text of an envelope exceeds the limit."""

    code = "text.too_large"

    def __init__(self, size_bytes: int, *, bytes_max: int) -> None:
        super().__init__(
            f"the text is too large: {size_bytes:,} bytes or more",
            because=f"the limit is {bytes_max:,} bytes for each envelope",
            try_this="send it as an attachment",
        )


class AttachmentInvalid(Invalid):
    """An envelope refers to an attachment whose name, hash or size differs from the response to its upload."""

    code = "attachment.invalid"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"invalid attachment '{name}'",
            because="its name, hash or size differs from what the server returned for the upload",
            try_this="upload the file first, then send the attachment exactly as the upload returned it",
        )


class EnvelopeExpired(Invalid):
    """The envelope expired before it was accepted."""

    code = "time.past"

    def __init__(self) -> None:
        super().__init__(
            "the envelope has already expired",
            because="expires_at is in the past",
            try_this="leave out expires_at, or choose a later time",
        )


class RecipientCannotReceive(Invalid):
    """The recipient is a schedule or the server, which do not receive envelopes."""

    code = "address.cannot_receive"

    def __init__(self, address: str) -> None:
        super().__init__(
            f"{address} cannot receive envelopes",
            because="only agents, people and channels can receive envelopes",
            try_this="send it to agent:NAME or person:NAME",
        )


class MessageIdMissing(Invalid):
    """A connector passed a message without the id that the platform gave it."""

    code = "message.no_id"

    def __init__(self) -> None:
        super().__init__(
            "the message has no id",
            because="without an id, a message that the platform delivers again would be accepted twice",
            try_this="correct the connector: it must pass the id that the platform gave the message",
        )


class AttachmentsUnavailable(TooLarge):
    """This server has no attachment directory, so it fetches no files."""

    code = "attachment.unavailable"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"attachment '{name}' was not fetched",
            because="this server does not store attachments",
            try_this="send the content as text",
        )


# --- signed requests ---


class UnsignedRequest(RetinueError):
    """The request is not signed with a known key."""


class CallbackUnsigned(UnsignedRequest):
    """The callback of an external agent is not signed with the agent's key."""

    code = "external.unsigned"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "the callback has no valid signature",
            because=because,
            try_this="sign it as docs/guides/external-agents.md describes",
        )


class WebhookUnverified(UnsignedRequest):
    """The webhook request has no valid signature or token."""

    code = "webhook.unverified"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "the webhook request could not be verified",
            because=because,
            try_this="sign it as docs/guides/webhooks.md describes",
        )


class WebhookConnectorNotFound(NotFound):
    """No running webhook connector has this name."""

    code = "webhook.no_connector"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"no webhook connector named '{shorten_name(name)}'",
            because="no connector with this name is running, or it belongs to another platform",
            try_this="list the connectors: retinue connector list",
        )


# --- callbacks ---


class CallbackEmpty(Invalid):
    """The body of a callback is empty."""

    code = "external.empty"

    def __init__(self) -> None:
        super().__init__(
            "the callback has no text",
            because="the request body is the text, and it is empty",
            try_this="send the text as the request body",
        )


class CallbackIdInvalid(Invalid):
    """The message id of a callback is missing or invalid."""

    code = "external.id_invalid"

    def __init__(self, *, header: str, chars_max: int) -> None:
        super().__init__(
            "invalid message id in a callback",
            because=f"{header} must have 1 to {chars_max} printable ASCII characters",
            try_this="use a random id; if you retry the request, use the same id again",
        )


class CallbackRequestNotFound(NotFound):
    """The callback answers a request that was not sent from its session."""

    code = "external.request_not_found"

    def __init__(self, request: str) -> None:
        super().__init__(
            f"no request '{shorten_name(request)}' was sent from this session",
            because="this session sent no envelope with this id to the external agent",
            try_this="use the `id` of the message that you are answering, or leave it out",
        )


class TooManyUnreadCallbacks(Conflict):
    """A session has too many unread messages that an external agent sent without a request."""

    code = "external.too_many_unread"

    def __init__(self, *, count_max: int) -> None:
        super().__init__(
            "too many unread messages in this session",
            because=f"the limit is {count_max} unread messages that do not answer a request",
            try_this="try again later",
        )
