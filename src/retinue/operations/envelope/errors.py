"""Errors of the envelope, inbox and upload operations."""

from __future__ import annotations

from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound, TooLarge
from retinue.domain.shared_errors import shorten_name

# --- send ---


class SessionNamedTwice(Invalid):
    """An envelope names two different sessions."""

    code = "session.named_twice"

    def __init__(self) -> None:
        super().__init__(
            "the envelope names two sessions",
            because="`session`, `conversation` and the recipient can each name a session, and two of them do",
            try_this="name the session only once",
        )


class NoSessionYet(NotFound):
    """The caller has no session with the agent, so there is no latest session."""

    code = "session.none"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"you have no session with {agent}",
            because="none was started, or the last one was deleted",
            try_this="leave `session` out to start one",
        )


class SessionOfOtherAgent(Invalid):
    """The session belongs to an agent other than the recipient."""

    code = "session.other_agent"

    def __init__(self, session: str, *, recipient: str, agent: str) -> None:
        super().__init__(
            f"session {session} does not belong to {recipient}",
            because=f"it belongs to {agent}",
            try_this=f"send the message to agent:{agent}, or use another session",
        )


class AttachmentGivenTwice(Invalid):
    """An attachment is given both as data and as the hash of an uploaded file."""

    code = "attachment.given_twice"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the attachment '{name}' is given twice",
            because="it is given both as data and as the hash of an uploaded file",
            try_this="send the data or the hash, not both",
        )


class RunRequestNotAllowed(NotAllowed):
    """The caller may not choose the model, lane, workspace or extra system prompt of the run."""

    code = "run.request_not_allowed"

    def __init__(self) -> None:
        super().__init__(
            "you cannot choose how this run is executed",
            because="the owner may choose everything, members only the model, and other senders nothing",
            try_this="leave out model, provider, lane, workspace and extra_system_prompt",
        )


class RunModelMissing(Invalid):
    """A provider is given without a model."""

    code = "run.model_missing"

    def __init__(self) -> None:
        super().__init__(
            "a provider is given, but no model",
            because="a provider has several models",
            try_this="give the model too, or leave out the provider",
        )


class RunWorkspaceRelative(Invalid):
    """The workspace is not an absolute path."""

    code = "run.workspace_relative"

    def __init__(self, workspace: str) -> None:
        super().__init__(
            f"invalid workspace: '{shorten_name(workspace)}'",
            because="it must be an absolute path",
            try_this="for example: /home/maria/garden",
        )


class ExtraSystemPromptTooLarge(TooLarge):
    """The extra system prompt exceeds the limit."""

    code = "run.extra_prompt_too_large"

    def __init__(self, *, chars_max: int) -> None:
        super().__init__(
            "the extra system prompt is too long",
            because=f"the limit is {chars_max:,} characters",
            try_this="move a part of it to the instructions of the agent",
        )


class WebhookNotAllowed(NotAllowed):
    """The caller may not request that the outcome of an envelope be sent to a URL."""

    code = "webhook.not_allowed"

    def __init__(self) -> None:
        super().__init__(
            "you cannot set a webhook",
            because="only the owner and members can set a webhook, and only for their own messages",
            try_this="leave out `webhook`",
        )


class WebhookRecipientInvalid(Invalid):
    """A webhook is set on an envelope whose recipient is not an agent."""

    code = "webhook.recipient_invalid"

    def __init__(self, recipient: str) -> None:
        super().__init__(
            f"a webhook cannot be set for a message to {recipient}",
            because="a webhook reports the outcome of a run, and only agents have runs",
            try_this="leave out `webhook`",
        )


# --- cancel and list ---


class EnvelopeNotWaiting(Conflict):
    """The envelope can no longer be cancelled. `status` is empty if a run has already read it."""

    code = "envelope.not_waiting"

    def __init__(self, envelope: str, *, status: str) -> None:
        super().__init__(
            f"envelope {envelope} is no longer waiting",
            because=f"its status is {status}" if status else "a run has already read it",
            try_this="if a run is working on it, stop the run: retinue stop SESSION",
        )


class EnvelopeFilterInvalid(Invalid):
    """A list of envelopes was requested without a recipient or a sender, or with both."""

    code = "envelope.filter_invalid"

    def __init__(self) -> None:
        super().__init__(
            "invalid filter for a list of envelopes",
            because="exactly one of `to` and `from` must be given",
            try_this="for example: retinue envelope list --to person:maria --status pending",
        )


class InboxPeopleOnly(Invalid):
    """The caller is not a person, so it has no inbox."""

    code = "inbox.people_only"

    def __init__(self, caller: str) -> None:
        super().__init__(
            "only people have an inbox",
            because=f"you are {caller}",
            try_this=f"list the envelopes to {caller}: retinue envelope list --to {caller} --status pending",
        )


# --- uploads ---


class UploadQuotaReached(TooLarge):
    """The principal has uploaded too many files or bytes that no envelope refers to yet."""

    code = "upload.quota_reached"

    def __init__(self, *, files_max: int, bytes_max: int) -> None:
        super().__init__(
            "too many unused uploads",
            because=f"the limit is {files_max} files and {bytes_max:,} bytes that no envelope refers to yet",
            try_this="send the envelope that refers to them, or wait: unused uploads expire within an hour",
        )


class UploadNotFound(NotFound):
    """The principal has not uploaded a file with this hash, or the upload has expired."""

    code = "upload.not_found"

    def __init__(self, hash_: str) -> None:
        super().__init__(
            f"no upload {hash_[:8]}",
            because="you did not upload it, or it has expired, or the server was restarted since",
            try_this="upload the file again: POST /api/attachments",
        )
