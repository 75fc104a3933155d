"""Errors of tools that use people, channels, panels and permissions: one class for each error code."""

from __future__ import annotations

from collections.abc import Iterable

from retinue.domain.errors import Conflict, Invalid, NotFound, RetinueError, TooLarge
from retinue.tools.base import ToolFailed

_ANSWER_INSTEAD = "put the content in your answer instead"


# --- notify, ask_questions ---


class NotificationTitleMissing(ToolFailed):
    """The title of a notification is blank."""

    code = "notification.title_missing"

    def __init__(self) -> None:
        super().__init__("no title given", because="a notification needs a title", try_this="set `title` to one line")


class NotificationPersonGone(ToolFailed):
    """The person to notify no longer exists."""

    code = "notification.person_not_found"

    def __init__(self, person: str) -> None:
        super().__init__(f"cannot notify {person}", because="no person has this name", try_this=_ANSWER_INSTEAD)


class QuestionnairePersonMissing(ToolFailed):
    """The run does not answer a person's message, so it has no person to ask."""

    code = "questionnaire.no_person"

    def __init__(self) -> None:
        super().__init__(
            "no person to ask",
            because="this run does not answer a person's message",
            try_this="ask in your answer instead",
        )


class QuestionnaireSessionMissing(ToolFailed):
    """The call is not part of a session, so the answers could not be delivered."""

    code = "questionnaire.no_session"

    def __init__(self) -> None:
        super().__init__(
            "you cannot ask questions here",
            because="this call is not part of a conversation, so the answers could not be delivered",
            try_this="ask in your answer instead",
        )


class TooManyQuestionnaires(ToolFailed):
    """The session has too many unanswered questionnaires."""

    code = "questionnaire.too_many"

    def __init__(self, *, count_max: int) -> None:
        super().__init__(
            "too many open questionnaires",
            because=f"the limit is {count_max} unanswered questionnaires for each conversation",
            try_this="wait until one of them is answered",
        )


# --- panels and windows ---


class PanelPersonMissing(ToolFailed):
    """The run does not answer a person's message, so there is no person whose web app it could use."""

    code = "panel.no_person"

    def __init__(self) -> None:
        super().__init__(
            "you cannot use the web app in this run",
            because="this run does not answer a person's message",
            try_this=_ANSWER_INSTEAD,
        )


class LinkInvalid(ToolFailed):
    """The link to open is not a plain http or https URL."""

    code = "link.invalid"

    def __init__(self) -> None:
        super().__init__(
            "invalid link",
            because="it must be an http or https URL with a host, without a user name, a password or spaces",
            try_this="use a URL such as https://example.org/",
        )


class WindowRenamed(Invalid):
    """A connection reports a different id for its browser window than it did at first."""

    code = "window.renamed"

    def __init__(self, *, before: str) -> None:
        super().__init__(
            "a browser window cannot change its id",
            because=f"this connection first reported the id {before}",
            try_this="open a separate connection for each browser window",
        )


class WindowInventoryInvalid(Invalid):
    """The list of panels that a browser window reported is invalid. The previous list stays in use."""

    code = "window.inventory_invalid"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "invalid list of the panels in a browser window",
            because=because,
            try_this="correct the list and send it again; until then, the previous list is used",
        )


class TooManyWindows(TooLarge):
    """The person has the web app open in as many browser windows as the limit allows."""

    code = "window.too_many"

    def __init__(self, *, windows_max: int) -> None:
        super().__init__(
            "the web app is open in too many browser windows",
            because=f"the limit is {windows_max} for each person",
            try_this="close one of them",
        )


class NoWindowOpen(NotFound):
    """The person does not have the web app open in a browser."""

    code = "window.none_open"

    def __init__(self, person: str) -> None:
        super().__init__(
            f"{person} does not have the web app open in a browser",
            because="the tools for the web app work only while this person has it open",
            try_this=_ANSWER_INSTEAD,
        )


class WindowNotFound(NotFound):
    """The person has no browser window of the web app with this id."""

    code = "window.not_found"

    def __init__(self, window: str, *, known: Iterable[str]) -> None:
        super().__init__(
            f"no browser window '{window}'",
            because=f"the open browser windows are: {', '.join(known)}",
            try_this="leave `window` out for the window that was used last",
        )


class PanelNotFound(NotFound):
    """No open browser window of the web app shows a panel with this id."""

    code = "panel.not_found"

    def __init__(self, panel: str) -> None:
        super().__init__(
            f"no panel '{panel}'",
            because="it was closed, or was never open",
            try_this="use panels_list to see the panels",
        )


class WindowBusy(Conflict):
    """Too many commands to a browser window are still unanswered."""

    code = "window.busy"

    def __init__(self, *, commands_max: int) -> None:
        super().__init__(
            "too many commands for this browser window",
            because=f"the limit is {commands_max} unanswered commands for each window",
            try_this="wait until the window has answered",
        )


class WindowFailed(RetinueError):
    """A browser window did not perform a command."""

    def __init__(self, sentence: str, *, because: str) -> None:
        super().__init__(sentence, because=because, try_this=_ANSWER_INSTEAD)


class WindowCommandFailed(WindowFailed):
    """A browser window reported that it could not perform a command."""

    code = "window.failed"

    def __init__(self, *, because: str) -> None:
        super().__init__("the browser window could not perform the command", because=because or "it gave no reason")


class WindowClosed(WindowFailed):
    """A browser window was closed before it answered a command."""

    code = "window.closed"

    def __init__(self) -> None:
        super().__init__("the browser window did not answer", because="it was closed, or lost its connection")


class WindowTimeout(WindowFailed):
    """A browser window did not answer a command in time."""

    code = "window.timeout"

    def __init__(self, *, timeout_s: float) -> None:
        super().__init__("the browser window did not answer", because=f"it timed out after {timeout_s:g} s")


# --- permissions ---


class PermissionForAnother(ToolFailed):
    """An agent requested a permission for another agent, in a session without a person."""

    code = "permission.for_another"

    def __init__(self) -> None:
        super().__init__(
            "you can request permissions only for yourself here",
            because="this conversation has no person who could decide about another agent",
            try_this="leave `agent` out",
        )


class PermissionToSelf(ToolFailed):
    """An agent tried to grant itself a permission."""

    code = "permission.to_yourself"

    def __init__(self) -> None:
        super().__init__(
            "you cannot grant yourself a permission",
            because="a permission for one conversation would then apply in others",
            try_this="request it with request_permission",
        )


class PermissionNotHeld(ToolFailed):
    """The agent cannot grant a permission that it does not have, or that it got from another agent."""

    code = "permission.not_held"

    def __init__(self, permission: str) -> None:
        super().__init__(
            f"you cannot grant {permission}",
            because="no person has granted it to you here, and a permission from another agent cannot be passed on",
            try_this="request it with request_permission",
        )


class PrincipalCannotGrant(ToolFailed):
    """The permission level of the run principal is too low to grant permissions."""

    code = "permission.principal_level"

    def __init__(self, principal: str, *, level: str, needed: str) -> None:
        super().__init__(
            f"you cannot grant permissions on behalf of {principal}",
            because=f"granting needs level {needed}; {principal} has {level}",
            try_this="request the permission from the owner with request_permission",
        )


class PermissionReasonMissing(ToolFailed):
    """The reason in a permission request is blank."""

    code = "permission.reason_missing"

    def __init__(self) -> None:
        super().__init__(
            "no reason given",
            because="a person needs the reason to decide",
            try_this="set `reason` to a few words that say what the permission is for",
        )


# --- results ---


class ResultNotFound(ToolFailed):
    """This session has no truncated tool result with this id."""

    code = "result.not_found"

    def __init__(self, result: str) -> None:
        super().__init__(
            f"no result '{result}' in this session",
            because="a truncated result can be read only in the session of its call, by the id at the end of its text",
            try_this="copy the id again, or call the tool again",
        )


class ResultGone(ToolFailed):
    """The full text of a truncated tool result is no longer stored."""

    code = "result.gone"

    def __init__(self, result: str, *, because: str) -> None:
        super().__init__(f"the result '{result}' is no longer stored", because=because, try_this="call the tool again")


# --- messages, files and reactions in channels ---


class MessageRecipientInvalid(ToolFailed):
    """The tool `message` cannot write to this kind of address."""

    code = "message.recipient_invalid"

    def __init__(self, recipient: str) -> None:
        super().__init__(
            f"you cannot send a message to '{recipient[:100]}'",
            because="`message` is for people, for channels and for agent:background",
            try_this="use an address such as person:owner; for other agents, use agents_message",
        )


class ChannelMissing(ToolFailed):
    """The call names no channel, and the message that the run answers did not come from a channel.

    `given` is the recipient that the call names.
    """

    code = "channel.missing"

    def __init__(self, *, given: str = "") -> None:
        super().__init__(
            "no channel to send to",
            because=f"'{given[:80]}' is not a channel"
            if given
            else "the message you answer did not come from a channel",
            try_this="set `to` to channel:CONNECTOR:CHANNEL",
        )


class FilesNotSupported(ToolFailed):
    """The connector of the channel cannot send files."""

    code = "channel.no_files"

    def __init__(self, channel: str) -> None:
        super().__init__(
            f"{channel} does not support files",
            because="its connector cannot send files",
            try_this="put the content in your answer",
        )


class FileTooLargeForChannel(ToolFailed):
    """The file is larger than the platform of the channel allows."""

    code = "channel.file_too_large"

    def __init__(self, channel: str, *, size_bytes: int, bytes_max: int) -> None:
        super().__init__(
            f"the file is too large for {channel}",
            because=f"it is {size_bytes:,} bytes, and the limit is {bytes_max:,} bytes",
            try_this="send a smaller file, or put the content in your answer",
        )


class FileNotChosen(ToolFailed):
    """The call names no file, or names two."""

    code = "file.not_chosen"

    def __init__(self) -> None:
        super().__init__(
            "no file given, or more than one",
            because="exactly one of `file_id` and `path` is needed",
            try_this="set `file_id` or `path`, not both",
        )


class SessionFileNotFound(ToolFailed):
    """The session has no file with this id."""

    code = "file.not_found"

    def __init__(self, id_: str) -> None:
        super().__init__(
            f"no file '{id_[:80]}' in this conversation",
            because="no file of this conversation has an id that starts with these digits",
            try_this="copy the id again, or use `path` if you can read the file",
        )


class FileTypeMismatch(ToolFailed):
    """The file does not have the type that `send_as` requires."""

    code = "file.wrong_type"

    def __init__(self, name: str, *, send_as: str, media_type: str) -> None:
        super().__init__(
            f"{name} cannot be sent as {send_as}",
            because=f"its type is {media_type}",
            try_this="set `send_as` to document",
        )


class ReactionsNotSupported(ToolFailed):
    """The connector of the channel cannot send reactions."""

    code = "reaction.not_supported"

    def __init__(self, channel: str) -> None:
        super().__init__(
            f"{channel} does not support reactions",
            because="its connector cannot send reactions",
            try_this="answer with text",
        )


class ReactionMessageMissing(ToolFailed):
    """No message on a platform belongs to the envelope, so there is nothing to react to."""

    code = "reaction.no_message"

    def __init__(self) -> None:
        super().__init__(
            "no message to react to",
            because="only messages from a channel, or sent to one, can have reactions",
            try_this="answer with text",
        )


class ReactionRefused(ToolFailed):
    """The platform refused the reaction."""

    code = "reaction.refused"

    def __init__(self, channel: str, *, because: str) -> None:
        super().__init__(
            f"{channel} refused the reaction", because=because, try_this="try another emoji, or answer with text"
        )


class ReactionUnconfirmed(ToolFailed):
    """The connection failed while the reaction was sent."""

    code = "reaction.unconfirmed"

    def __init__(self) -> None:
        super().__init__(
            "it is unknown whether the reaction was sent",
            because="the connection failed, or timed out",
            try_this="send the same reaction again: this is safe, even if the first one was sent",
        )
