"""Errors of the operations on sessions."""

from __future__ import annotations

from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound, TooLarge


class SessionNotOwned(NotAllowed):
    """The caller may see the session, but it belongs to another person or agent."""

    code = "session.not_owned"

    def __init__(self, session: str, *, shares: bool) -> None:
        super().__init__(
            f"session {session} is not yours" if session else "this is not yours",
            because="only people can share sessions, and only their own"
            if shares
            else "you may see it, but it belongs to another person or agent",
            try_this="ask its owner",
        )


class SessionCreationNotAllowed(NotAllowed):
    """An agent can only create sessions of its own."""

    code = "session.creation_not_allowed"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"you cannot create a session of {agent}",
            because="an agent sees only its own sessions",
            try_this=f"send a message to agent:{agent}, which starts a session",
        )


class SessionNameTaken(Conflict):
    """Another session of the agent has this name."""

    code = "session.name_taken"

    def __init__(self, agent: str, name: str) -> None:
        super().__init__(
            f"{agent} already has a session named '{name}'",
            because="names are unique among an agent's sessions, and case-insensitive",
            try_this="choose another name",
        )


class SessionAttributesTooLarge(TooLarge):
    """The attributes of a session exceed the limit."""

    code = "session.attributes_too_large"

    def __init__(self, size_bytes: int, *, bytes_max: int) -> None:
        super().__init__(
            "the attributes are too large",
            because=f"they have {size_bytes:,} bytes; the limit is {bytes_max:,}",
            try_this="keep large values in files, and their paths here",
        )


class TooManySessionShares(TooLarge):
    """A session is shared with the maximum number of people."""

    code = "session.too_many_shares"

    def __init__(self, session: str, *, count_max: int) -> None:
        super().__init__(
            f"session {session} is shared with too many people",
            because=f"the limit is {count_max}",
            try_this=f"stop sharing it with one of them: retinue session unshare {session} PERSON",
        )


class SessionNotShared(NotFound):
    """A session is not shared with this person."""

    code = "session.not_shared"

    def __init__(self, session: str, person: str) -> None:
        super().__init__(
            f"session {session} is not shared with {person}",
            because="it never was, or no longer is",
            try_this="check the name: retinue person list",
        )


class SessionNotRestorable(NotFound):
    """No deleted session with this id can be restored."""

    code = "session.not_restorable"

    def __init__(self, session: str, *, days_max: int) -> None:
        super().__init__(
            f"no deleted session {session}",
            because=f"none with this id was deleted in the last {days_max} days",
            try_this="list the sessions that can be restored: retinue session deleted",
        )


class SessionOriginTaken(Conflict):
    """A deleted session cannot be restored, because another one has its origin now."""

    code = "session.origin_taken"

    def __init__(self, session: str, *, origin: str) -> None:
        super().__init__(
            f"session {session} cannot be restored",
            because=f"another session exists for {origin}",
            try_this="delete that one first: retinue session delete SESSION",
        )


class SessionIdInvalid(Invalid):
    """The text cannot be the chosen id of a session."""

    code = "session.id_invalid"

    def __init__(self, text: str, *, chars_max: int) -> None:
        super().__init__(
            f"invalid session id: {text[:chars_max]!r}",
            because=f"it must have 1 to {chars_max} letters, digits, hyphens and underscores",
            try_this="use an id such as garden-2027",
        )


class SessionIdTaken(Conflict):
    """Another session has the chosen id. `deleted_days` is set if it was deleted that many days ago, or more."""

    code = "session.id_taken"

    def __init__(self, id_: str, *, deleted_days: int | None = None) -> None:
        super().__init__(
            f"the id '{id_}' is taken",
            because="a session of another agent or another person has it"
            if deleted_days is None
            else f"a session that was deleted over {deleted_days} days ago had it",
            try_this="choose another id",
        )


class SessionNotExternal(Invalid):
    """Ids can only be chosen for sessions of external agents."""

    code = "session.not_external"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"{agent} is not an external agent",
            because="you can only choose the ids of external agents' sessions",
            try_this=f"create a session: retinue session create {agent}",
        )


class SessionForkPointInvalid(Invalid):
    """A session cannot be forked at this record."""

    code = "session.fork_point_invalid"

    def __init__(self, session: str, *, before: int, last: int) -> None:
        super().__init__(
            f"session {session} has no record before {before}",
            because=f"it has the records 1 to {last}, and at least the first is copied",
            try_this=f"use the number of a record: retinue session history {session}",
        )


class SessionRecordNotFound(NotFound):
    """No message in the session's context holds this record."""

    code = "session.record_not_found"

    def __init__(self, session: str, *, record: int) -> None:
        super().__init__(
            f"session {session} has no record {record} that can be removed",
            because="it is not in the current context, or before its first message",
            try_this=f"use the number of a record: retinue session state {session}",
        )


class SessionRevised(Conflict):
    """The session has changed since the caller read it."""

    code = "session.revised"

    def __init__(self, session: str, *, revision: int, expected: int) -> None:
        super().__init__(
            f"session {session} has changed since you read it",
            because=f"it is at revision {revision}, and you read {expected}",
            try_this=f"read it again: retinue session state {session}",
        )


class SessionBusy(Conflict):
    """A run is working in the session, so its context cannot be trimmed."""

    code = "session.busy"

    def __init__(self, session: str) -> None:
        super().__init__(
            f"a run is working in session {session}",
            because="it has already read what you want to remove",
            try_this=f"wait until it ends, or stop it: retinue stop {session}",
        )


class SessionContextTooLong(TooLarge):
    """The context of a session has too many records to be copied."""

    code = "session.too_long"

    def __init__(self, session: str, *, records: int, records_max: int) -> None:
        super().__init__(
            f"the context of session {session} is too long",
            because=f"it has {records:,} records; the limit is {records_max:,}",
            try_this=f"reset it, with what it should keep: retinue reset {session} MESSAGE",
        )
