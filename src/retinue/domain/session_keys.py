"""Session keys: lower-case strings that identify a conversation by agent, platform and sender.

    agent:ada:main                             all direct messages to ada, with the scope `main`
    agent:ada:direct:maria                     one person, on any platform
    agent:ada:telegram:direct:42               one person on one platform
    agent:ada:telegram:work:direct:42          one person on one of the server's accounts there
    agent:ada:telegram:group:-100              a group, optionally followed by :topic:N or :thread:ID
    agent:ada:slack:channel:c042               a channel, likewise
    agent:ada:cron:JOB, agent:ada:cron:JOB:run:ID
    agent:ada:subagent:ID
    hook:ID, hook:NAME:ID

A colon within a part is written as %3a, and a percent sign as %25.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from retinue.domain.errors import Invalid
from retinue.domain.structs import replace
from retinue.domain.value_errors import SessionKeyIdMissing, SessionKeyInvalid, SessionKeyPlatformReserved

AGENT_PREFIX = "agent"
MAIN = "main"


class DmScope(StrEnum):
    """Which direct messages share a session."""

    MAIN = "main"
    PER_PEER = "per-peer"
    PER_CHANNEL_PEER = "per-channel-peer"
    PER_ACCOUNT_CHANNEL_PEER = "per-account-channel-peer"


class KeyKind(StrEnum):
    MAIN = "main"
    DIRECT = "direct"
    GROUP = "group"
    CHANNEL = "channel"
    CRON = "cron"
    SUBAGENT = "subagent"
    HOOK = "hook"


class ChatType(StrEnum):
    """The type of a chat: a direct chat, a group, or a thread in a group."""

    DIRECT = "direct"
    GROUP = "group"
    THREAD = "thread"  # a topic or thread within a group


GROUP_KINDS = (KeyKind.GROUP, KeyKind.CHANNEL)
_LEGACY_KINDS = {"dm": KeyKind.DIRECT}  # legacy spelling
_RESERVED = frozenset({*KeyKind, *_LEGACY_KINDS})


class SessionKey(Struct, frozen=True, kw_only=True):
    """A parsed session key. `id` is the id of the peer, group, job, subagent or hook.

    `platform` is, for example, `telegram`. `account` is one of the server's accounts on that
    platform. `run` is one run of a job.
    """

    kind: KeyKind
    agent: str = ""
    platform: str = ""
    account: str = ""
    id: str = ""
    topic: str = ""
    thread: str = ""
    run: str = ""

    def __str__(self) -> str:
        if self.kind is KeyKind.HOOK:
            parts = [KeyKind.HOOK, self.platform, self.id]  # a hook's name takes the place of the platform
        else:
            parts = [AGENT_PREFIX, self.agent, self.platform, self.account, self.kind, self.id]
        for name, value in (("topic", self.topic), ("thread", self.thread), ("run", self.run)):
            parts += [name, value] if value else []
        return ":".join(_escape(part) for part in parts if part)


def direct_key(
    agent: str,
    *,
    scope: DmScope,
    platform: str,
    account: str,
    peer: str,
    links: Mapping[str, Sequence[str]] | None = None,
) -> SessionKey:
    """Return the session key of a direct message to an agent.

    `links` maps the name of a person to their platform ids, as `PLATFORM:ID`. The name replaces a
    linked id in the key. With the scope `per-peer`, all direct messages of that person therefore share
    a session, on every platform.
    """
    agent = agent.casefold()
    if scope is DmScope.MAIN:
        return SessionKey(kind=KeyKind.MAIN, agent=agent)
    return SessionKey(
        kind=KeyKind.DIRECT,
        agent=agent,
        platform="" if scope is DmScope.PER_PEER else _validate_platform(platform),
        account=account.casefold() if scope is DmScope.PER_ACCOUNT_CHANNEL_PEER else "",
        id=_linked_name(f"{platform}:{_require_id(peer)}", links or {}) or peer.casefold(),
    )


def group_key(
    agent: str, *, platform: str, id: str, kind: KeyKind = KeyKind.GROUP, topic: str = "", thread: str = ""
) -> SessionKey:
    """Return the session key of a group or channel, or of a topic or thread within it."""
    assert kind in GROUP_KINDS
    return SessionKey(
        kind=kind,
        agent=agent.casefold(),
        platform=_validate_platform(platform),
        id=_require_id(id).casefold(),
        topic=topic.casefold(),
        thread=thread.casefold(),
    )


def cron_key(agent: str, job: str, *, run: str = "") -> SessionKey:
    """Return the session key of a job or, with `run`, of one run of the job."""
    return SessionKey(kind=KeyKind.CRON, agent=agent.casefold(), id=_require_id(job).casefold(), run=run.casefold())


def subagent_key(agent: str, id: str) -> SessionKey:
    return SessionKey(kind=KeyKind.SUBAGENT, agent=agent.casefold(), id=_require_id(id).casefold())


def hook_key(id: str, *, name: str = "") -> SessionKey:
    return SessionKey(kind=KeyKind.HOOK, platform=name.casefold(), id=_require_id(id).casefold())


def connector_names(key: str) -> tuple[str, ...]:
    """Return the possible names of the connector in a session key: the account, then the platform.

    The result is empty if the key has neither.
    """
    if key.startswith("channel:"):
        return (key.split(":", 2)[1],)
    try:
        parts = parse_session_key(key)
    except Invalid:
        return ()
    return tuple(name for name in (parts.account, parts.platform) if name)


def parse_session_key(text: str) -> SessionKey:
    """Parse a session key, in upper or lower case.

    Raises Invalid if the key has none of the forms in the docstring of this module.
    """
    parts = [_unescape(part) for part in text.casefold().split(":")]
    if any(not part for part in parts):
        raise SessionKeyInvalid(text, because="a part of it is empty")
    match parts:
        case ["hook", id_]:
            return hook_key(id_)
        case ["hook", name, *rest]:
            return hook_key(":".join(rest), name=name)
        case ["agent", agent, "main"]:
            return SessionKey(kind=KeyKind.MAIN, agent=agent)
        case ["agent", agent, "cron", job]:
            return cron_key(agent, job)
        case ["agent", agent, "cron", job, "run", run]:
            return cron_key(agent, job, run=run)
        case ["agent", agent, "subagent", id_]:
            return subagent_key(agent, id_)
        case ["agent", agent, *rest]:
            return _parse_conversation(text, agent, rest)
        case _:
            raise SessionKeyInvalid(text, because="it begins with neither agent: nor hook:")


def _parse_conversation(text: str, agent: str, parts: list[str]) -> SessionKey:
    """Parse `[CHANNEL[:ACCOUNT]:]KIND:ID` with an optional topic or thread.

    An account may have the same name as a kind.
    """
    for at, part in enumerate(parts[:3]):
        kind, below = _parse_kind(part), parts[at + 2 :]
        if kind is None or len(parts) < at + 2 or (kind in GROUP_KINDS and at != 1):
            continue
        channel, account = [*parts[:at], "", ""][:2]
        key = SessionKey(kind=kind, agent=agent, platform=channel, account=account, id=parts[at + 1])
        match below:
            case []:
                return key
            case ["topic", topic]:
                return replace(key, topic=topic)
            case ["thread", thread]:
                return replace(key, thread=thread)
            case _:
                continue
    raise SessionKeyInvalid(text, because="it names neither a person nor a channel")


def _parse_kind(part: str) -> KeyKind | None:
    if part in _LEGACY_KINDS:
        return _LEGACY_KINDS[part]
    return KeyKind(part) if part in (KeyKind.DIRECT, *GROUP_KINDS) else None


def _linked_name(platform_id: str, links: Mapping[str, Sequence[str]]) -> str:
    folded = platform_id.casefold()
    known_as = (name.casefold() for name, known in links.items() if folded in (each.casefold() for each in known))
    return next(known_as, "")


def _validate_platform(name: str) -> str:
    folded = _require_id(name).casefold()
    if folded in _RESERVED:
        raise SessionKeyPlatformReserved(folded)
    return folded


def _require_id(id: str) -> str:
    if not id.strip():
        raise SessionKeyIdMissing
    return id


def _escape(part: str) -> str:
    return part.replace("%", "%25").replace(":", "%3a")


def _unescape(part: str) -> str:
    return part.replace("%3a", ":").replace("%25", "%")
