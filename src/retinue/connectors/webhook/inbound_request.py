"""Parses what a request asks for from its path and body. Pure: only the signature was verified,
nothing else is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from retinue.connectors.webhook import webhook_templates
from retinue.connectors.webhook.settings import RUN_SECONDS_MAX, HookKind, HookMapping, WakeMode, WebhookSettings
from retinue.connectors.webhook.webhook_signature import SECRET_HEADERS
from retinue.domain.envelope import TEXT_BYTES_MAX
from retinue.domain.errors import Invalid, NotAllowed, NotFound
from retinue.domain.slash_command import EFFORT_WORDS
from retinue.domain.storable_text import clipped_bytes, is_storable
from retinue.text.glob_match import matches_glob

NAME_CHARS_MAX = 100
SESSION_CHARS_MAX = 100
WORD_CHARS_MAX = 200
PREFIX = "hook:"
NOWHERE = "none"

T = TypeVar("T")


class Wish(Struct, frozen=True, kw_only=True):
    """One parsed request.

    `session` is empty for a new session. `deliver` is an address, `none`, or empty for the
    connector's default.
    """

    kind: HookKind
    text: str
    name: str = ""
    agent: str = ""
    session: str = ""
    deliver: str = ""
    mode: WakeMode = WakeMode.NOW
    model: str | None = None
    effort: str | None = None
    timeout_s: float | None = None


class _Wake(Struct, kw_only=True, forbid_unknown_fields=True):
    text: str
    mode: WakeMode = WakeMode.NOW


class _Agent(Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    message: str
    name: str = ""
    agent_id: str = ""
    session_key: str = ""
    wake_mode: WakeMode = WakeMode.NOW
    deliver: bool = True
    channel: str = ""
    to: str = ""
    model: str | None = None
    thinking: str | None = None
    timeout_seconds: float | None = None


def read(settings: WebhookSettings, path: str, headers: Mapping[str, str], body: bytes) -> Wish | None:
    """Parse a request. Returns None if there are mappings for its path and none of them matches."""
    mapped = [(name, each) for name, each in settings.mappings.items() if (each.path or name) == path]
    if mapped:
        return _mapped(settings, mapped, headers, body)
    if path not in (HookKind.WAKE, HookKind.AGENT) or path not in settings.kinds:
        raise NotFound(
            f"nothing is done at {path[:WORD_CHARS_MAX]!r} here",
            because="it is neither a mapping of this connector, nor one of its `kinds`",
            try_this="look at the settings of this connector",
            code="webhook.unknown",
        )
    if path == HookKind.WAKE:
        wake = _decoded(body, _Wake)
        return _checked(Wish(kind=HookKind.WAKE, text=wake.text, mode=wake.mode))
    asked = _decoded(body, _Agent)
    wish = Wish(
        kind=HookKind.AGENT,
        text=asked.message,
        name=asked.name,
        agent=_allowed_agent(settings, asked.agent_id),
        session=_own_session(asked.session_key),
        deliver=_allowed_delivery(settings, asked),
        mode=asked.wake_mode,
        model=asked.model,
        effort=_effort(asked.thinking),
        timeout_s=asked.timeout_seconds,
    )
    return _checked(wish)


def _mapped(
    settings: WebhookSettings, mapped: list[tuple[str, HookMapping]], headers: Mapping[str, str], body: bytes
) -> Wish | None:
    shown = {name: value for name, value in headers.items() if name not in SECRET_HEADERS}
    values: dict[str, Any] = {"payload": webhook_templates.bounded(_payload(body)), "headers": shown}
    for name, mapping in mapped:
        if not all(matches_glob(glob, webhook_templates.at(values, place)) for place, glob in mapping.match.items()):
            continue
        wish = Wish(
            kind=mapping.kind,
            text=clipped_bytes(webhook_templates.render(mapping.text, values), TEXT_BYTES_MAX // 2),
            name=webhook_templates.render(mapping.name, values)[:NAME_CHARS_MAX] or name,
            agent=mapping.agent or "",
            session=_session(webhook_templates.render(mapping.session, values)),
            deliver=mapping.deliver,
            mode=mapping.mode,
            model=mapping.model,
            effort=_effort(mapping.thinking),
            timeout_s=mapping.timeout_s,
        )
        return _checked(wish)
    return None


def _payload(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise _invalid("its body is not JSON, or lies too deep in itself") from None


def _decoded(body: bytes, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise _invalid(str(error)) from None
    except RecursionError:
        raise _invalid("its body lies too deep in itself") from None


def _checked(wish: Wish) -> Wish:
    if not wish.text.strip():
        raise Invalid(
            "this request has no words",
            because="an agent is told words, and there are none",
            try_this="say something in `text` or `message`; for a mapping, in its template",
            code="webhook.empty",
        )
    if not all(is_storable(each) for each in (wish.text, wish.name, wish.session)):
        raise _invalid("it holds a NUL, or half a character")
    if len(wish.text.encode()) > TEXT_BYTES_MAX // 2:  # leaves space for the wrapper
        raise _invalid(f"its words have more than {TEXT_BYTES_MAX // 2:,} bytes")
    if len(wish.name) > NAME_CHARS_MAX or (wish.model and len(wish.model) > WORD_CHARS_MAX):
        raise _invalid(f"its name has more than {NAME_CHARS_MAX} characters, or its model more than {WORD_CHARS_MAX}")
    if wish.timeout_s is not None and not 1 <= wish.timeout_s <= RUN_SECONDS_MAX:
        raise _invalid(f"a run has 1 to {RUN_SECONDS_MAX:,.0f} seconds")
    return wish


def _allowed_agent(settings: WebhookSettings, name: str) -> str:
    if not name or name == settings.agent or any(matches_glob(glob, name) for glob in settings.agents):
        return name
    raise NotAllowed(
        f"requests may not be for {name[:WORD_CHARS_MAX]!r}",
        because="`agents` of this connector does not name it",
        try_this="leave `agentId` out, or have the owner add it there",
        code="webhook.agent-not-allowed",
    )


def _own_session(key: str) -> str:
    """The session of a key. A request can use only sessions of its connector."""
    if key.casefold().startswith("agent:"):
        raise NotAllowed(
            "requests have sessions of their own",
            because="the session key names a conversation of somebody else's",
            try_this="use hook:NAME, or leave `sessionKey` out",
            code="webhook.session-not-allowed",
        )
    return _session(key[len(PREFIX) :] if key.casefold().startswith(PREFIX) else key)


def _session(key: str) -> str:
    """Normalize a key to one lowercase line. A long key is cut, the same way for every request."""
    return " ".join(key.split())[:SESSION_CHARS_MAX].casefold()


def _allowed_delivery(settings: WebhookSettings, asked: _Agent) -> str:
    if not asked.deliver:
        return NOWHERE
    where = f"channel:{asked.channel}:{asked.to}" if asked.channel and asked.to else asked.to or asked.channel
    if not where or where == "last" or any(matches_glob(glob, where) for glob in settings.deliveries):
        return "" if where == "last" else where
    raise NotAllowed(
        f"the answer may not go to {where[:WORD_CHARS_MAX]!r}",
        because="`deliveries` of this connector does not name it",
        try_this="leave `channel` and `to` out, or have the owner add it there",
        code="webhook.delivery-not-allowed",
    )


def _effort(word: str | None) -> str | None:
    if not word:
        return None
    if word.casefold() not in EFFORT_WORDS:
        raise _invalid(f"`thinking` is one of {', '.join(EFFORT_WORDS)}")
    return EFFORT_WORDS[word.casefold()]


def _invalid(because: str) -> Invalid:
    return Invalid(
        "this request cannot be understood",
        because=because[:300],
        try_this="see the guide on webhooks for what it may say",
        code="webhook.not-understood",
    )
