"""Errors of the operations on sessions."""

from __future__ import annotations

from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound, TooLarge


class SessionNotOwned(NotAllowed):
    """The caller may see the session, but it belongs to another person or agent."""

    code = "session.not_owned"

    def __init__(self, session: str, *, shares: bool) -> None:
        super().__init__(
            f"session {session} is not yours" if session else "this session is not yours",
            because="only people can share sessions, and only sessions that belong to them"
            if shares
            else "you may see it, but it belongs to another person or agent",
            try_this="ask the person or agent that it belongs to",
        )


class SessionCreationNotAllowed(NotAllowed):
    """An agent can create only its own sessions."""

    code = "session.creation_not_allowed"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"you cannot create a session of {agent}",
            because="an agent can create only its own sessions",
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
            because=f"they are {size_bytes:,} bytes, and the limit is {bytes_max:,} bytes",
            try_this="keep large values in files, and set attributes to the paths of the files",
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
            because="it was never shared with this person, or it no longer is",
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
    """A deleted session cannot be restored, because another session has its origin now."""

    code = "session.origin_taken"

    def __init__(self, session: str, *, origin: str) -> None:
        super().__init__(
            f"session {session} cannot be restored",
            because=f"another session exists for {origin}",
            try_this="delete the other session first: retinue session delete SESSION",
        )


class SessionIdInvalid(Invalid):
    """The id chosen for a session is empty or too long, or has characters that are not allowed."""

    code = "session.id_invalid"

    def __init__(self, text: str, *, chars_max: int) -> None:
        super().__init__(
            f"invalid session id: {text[:chars_max]!r}",
            because=f"it must have 1 to {chars_max} letters, digits, hyphens and underscores",
            try_this="use an id such as garden-2027",
        )


class SessionIdTaken(Conflict):
    """Another session has, or had, the chosen id. `deleted_days` is set if that session was deleted."""

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
    """An id was chosen for a session of an agent that is not external."""

    code = "session.not_external"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"{agent} is not an external agent",
            because="you can choose the id of a session only if its agent is external",
            try_this=f"create a session: retinue session create {agent}",
        )


class SessionForkPointInvalid(Invalid):
    """A session cannot be forked from this record."""

    code = "session.fork_point_invalid"

    def __init__(self, session: str, *, before: int, last: int) -> None:
        super().__init__(
            f"session {session} cannot be forked before record {before}",
            because=f"it has the records 1 to {last}, and a fork copies at least the first",
            try_this=f"see the numbers of its records: retinue session history {session}",
        )


class SessionRecordNotFound(NotFound):
    """The record is not in the session's context, or comes before the first message of the context."""

    code = "session.record_not_found"

    def __init__(self, session: str, *, record: int) -> None:
        super().__init__(
            f"session {session} has no record {record} that can be removed",
            because="the record is not in the current context, or comes before the first message",
            try_this=f"see the numbers of the records: retinue session state {session}",
        )


class SessionRevised(Conflict):
    """The session has changed since the caller read it."""

    code = "session.revised"

    def __init__(self, session: str, *, revision: int, expected: int) -> None:
        super().__init__(
            f"session {session} has changed since you read it",
            because=f"it is at revision {revision} now, and you read revision {expected}",
            try_this=f"read it again: retinue session state {session}",
        )


class SessionBusy(Conflict):
    """A run is active in the session, so the context of the session cannot be trimmed."""

    code = "session.busy"

    def __init__(self, session: str) -> None:
        super().__init__(
            f"a run is working in session {session}",
            because="the run has already read what you want to remove",
            try_this=f"wait until it ends, or stop it: retinue stop {session}",
        )


class SessionContextTooLong(TooLarge):
    """The context of a session has more records than a fork or a trim can copy."""

    code = "session.too_long"

    def __init__(self, session: str, *, records: int, records_max: int) -> None:
        super().__init__(
            f"the context of session {session} is too long for a fork or a trim",
            because=f"it has {records:,} records, and at most {records_max:,} records can be copied",
            try_this=f"reset it, and put what it should keep into MESSAGE: retinue reset {session} MESSAGE",
        )
