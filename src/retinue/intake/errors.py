"""Errors of accepting a message: invalid envelopes, unsigned requests and callbacks that cannot be matched."""

from __future__ import annotations

from retinue.domain.errors import Conflict, Invalid, NotFound, RetinueError, TooLarge
from retinue.domain.shared_errors import shorten_name

# --- envelopes ---


class SourceInvalid(Invalid):
    """A connector passed a source, or a name of its conversation, that cannot be stored."""

    code = "source.invalid"

    def __init__(self, *, bytes_max: int) -> None:
        super().__init__(
            "invalid source of an envelope",
            because=f"its source, or the key of its origin, is not valid text or has over {bytes_max} bytes",
            try_this="report this as a bug of the connector",
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
    """An envelope refers to an attachment with a name, hash or size that the server did not assign."""

    code = "attachment.invalid"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"invalid attachment '{name}'",
            because="its name, hash or size differs from what the server returned for the upload",
            try_this="upload the file first, and send the attachment that the upload returns",
        )


class EnvelopeExpired(Invalid):
    """The envelope has expired before it was accepted."""

    code = "time.past"

    def __init__(self) -> None:
        super().__init__(
            "the envelope has already expired",
            because="expires_at is in the past",
            try_this="leave it out, or choose a later time",
        )


class RecipientCannotReceive(Invalid):
    """The recipient is a schedule or the server, which do not receive envelopes."""

    code = "address.cannot_receive"

    def __init__(self, address: str) -> None:
        super().__init__(
            f"{address} cannot receive envelopes",
            because="only agents, people and channels can",
            try_this="send it to agent:NAME or person:NAME",
        )


class MessageIdMissing(Invalid):
    """A connector passed a message without the id that the platform gave it."""

    code = "message.no_id"

    def __init__(self) -> None:
        super().__init__(
            "the message has no id",
            because="without an id, a redelivered message would be accepted twice",
            try_this="set the platform's id of each message in the connector",
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
    """The callback is not signed with the key of an external agent."""

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
            because="no connector of that name is running, or it is of another platform",
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
    """The callback has no usable message id."""

    code = "external.id_invalid"

    def __init__(self, *, header: str, chars_max: int) -> None:
        super().__init__(
            "invalid message id of a callback",
            because=f"{header} must have 1 to {chars_max} printable ASCII characters",
            try_this="use a random id, and the same id when you repeat the request",
        )


class CallbackRequestNotFound(NotFound):
    """The callback names a request that was not sent from its session."""

    code = "external.request_not_found"

    def __init__(self, request: str) -> None:
        super().__init__(
            f"no request '{shorten_name(request)}' was sent from this session",
            because="no envelope with this id was sent to this external agent",
            try_this="use the `id` of the message that you answer, or leave it out",
        )


class TooManyUnreadCallbacks(Conflict):
    """Too many unsolicited messages of an external agent wait in one session."""

    code = "external.too_many_unread"

    def __init__(self, *, count_max: int) -> None:
        super().__init__(
            "too many unread messages in this session",
            because=f"the limit is {count_max} messages that were not requested",
            try_this="try again later",
        )
