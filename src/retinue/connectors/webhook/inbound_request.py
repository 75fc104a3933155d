"""Parses an inbound webhook request from its path and body.

The signature proves who sent the request. Its content is untrusted, so every field is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from retinue.connectors.webhook import webhook_templates
from retinue.connectors.webhook.errors import (
    WebhookAgentNotAllowed,
    WebhookDeliveryNotAllowed,
    WebhookPathNotFound,
    WebhookRequestInvalid,
    WebhookSessionNotAllowed,
    WebhookTextMissing,
)
from retinue.connectors.webhook.settings import (
    RUN_SECONDS_MAX,
    WakeMode,
    WebhookKind,
    WebhookMapping,
    WebhookSettings,
)
from retinue.connectors.webhook.webhook_signature import SECRET_HEADERS
from retinue.domain.envelope import ENVELOPE_TEXT_BYTES_MAX
from retinue.domain.slash_command import EFFORT_WORDS
from retinue.domain.storable_text import is_storable, truncate_bytes
from retinue.text.glob_match import matches_glob

NAME_CHARS_MAX = 100
SESSION_CHARS_MAX = 100
FIELD_CHARS_MAX = 200
SESSION_PREFIX = "hook:"
NO_DELIVERY = "none"

T = TypeVar("T")


class WebhookRequest(Struct, frozen=True, kw_only=True):
    """One parsed webhook request.

    `session` is empty for a new session. `deliver` is an address, `none`, or empty for the connector's default.
    """

    kind: WebhookKind
    text: str
    name: str = ""
    agent: str = ""
    session: str = ""
    deliver: str = ""
    mode: WakeMode = WakeMode.NOW
    model: str | None = None
    effort: str | None = None
    timeout_s: float | None = None


class _WakeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    text: str
    mode: WakeMode = WakeMode.NOW


class _AgentBody(Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
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


def parse_request(
    settings: WebhookSettings, path: str, headers: Mapping[str, str], body: bytes
) -> WebhookRequest | None:
    """Parse a request. Returns None if its path has mappings and none of them matches."""
    mapped = [(name, each) for name, each in settings.mappings.items() if (each.path or name) == path]
    if mapped:
        return _apply_mappings(settings, mapped, headers, body)
    if path not in (WebhookKind.WAKE, WebhookKind.AGENT) or path not in settings.kinds:
        raise WebhookPathNotFound(path)
    if path == WebhookKind.WAKE:
        wake = _decode_body(body, _WakeBody)
        return _validate(WebhookRequest(kind=WebhookKind.WAKE, text=wake.text, mode=wake.mode))
    parsed = _decode_body(body, _AgentBody)
    request = WebhookRequest(
        kind=WebhookKind.AGENT,
        text=parsed.message,
        name=parsed.name,
        agent=_allowed_agent(settings, parsed.agent_id),
        session=_parse_session_key(parsed.session_key),
        deliver=_allowed_delivery(settings, parsed),
        mode=parsed.wake_mode,
        model=parsed.model,
        effort=_parse_effort(parsed.thinking),
        timeout_s=parsed.timeout_seconds,
    )
    return _validate(request)


def _apply_mappings(
    settings: WebhookSettings, mappings: list[tuple[str, WebhookMapping]], headers: Mapping[str, str], body: bytes
) -> WebhookRequest | None:
    shown = {name: value for name, value in headers.items() if name not in SECRET_HEADERS}
    values: dict[str, Any] = {"payload": webhook_templates.limit_payload(_decode_payload(body)), "headers": shown}
    for name, mapping in mappings:
        if not all(
            matches_glob(glob, webhook_templates.get_text_at(values, place)) for place, glob in mapping.match.items()
        ):
            continue
        request = WebhookRequest(
            kind=mapping.kind,
            text=truncate_bytes(webhook_templates.render(mapping.text, values), ENVELOPE_TEXT_BYTES_MAX // 2),
            name=webhook_templates.render(mapping.name, values)[:NAME_CHARS_MAX] or name,
            agent=mapping.agent or "",
            session=_normalize_session(webhook_templates.render(mapping.session, values)),
            deliver=mapping.deliver_to,
            mode=mapping.mode,
            model=mapping.model,
            effort=_parse_effort(mapping.thinking),
            timeout_s=mapping.timeout_s,
        )
        return _validate(request)
    return None


def _decode_payload(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise WebhookRequestInvalid("the body is not JSON, or is nested too deeply") from None


def _decode_body(body: bytes, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise WebhookRequestInvalid(str(error)) from None
    except RecursionError:
        raise WebhookRequestInvalid("the body is nested too deeply") from None


def _validate(request: WebhookRequest) -> WebhookRequest:
    if not request.text.strip():
        raise WebhookTextMissing
    if not all(is_storable(each) for each in (request.text, request.name, request.session)):
        raise WebhookRequestInvalid("a string has a NUL character or a lone surrogate")
    if len(request.text.encode()) > ENVELOPE_TEXT_BYTES_MAX // 2:  # leaves space for the wrapper
        raise WebhookRequestInvalid(f"the text is longer than {ENVELOPE_TEXT_BYTES_MAX // 2:,} bytes")
    if len(request.name) > NAME_CHARS_MAX or (request.model and len(request.model) > FIELD_CHARS_MAX):
        raise WebhookRequestInvalid(
            f"the name is longer than {NAME_CHARS_MAX} characters, or the model longer than {FIELD_CHARS_MAX}"
        )
    if request.timeout_s is not None and not 1 <= request.timeout_s <= RUN_SECONDS_MAX:
        raise WebhookRequestInvalid(f"the timeout must be 1 to {RUN_SECONDS_MAX:,.0f} seconds")
    return request


def _allowed_agent(settings: WebhookSettings, name: str) -> str:
    if not name or name == settings.agent or any(matches_glob(glob, name) for glob in settings.agents):
        return name
    raise WebhookAgentNotAllowed(name)


def _parse_session_key(key: str) -> str:
    """Return the session for a session key.

    A key of another session (`agent:...`) is refused: a request can use only sessions of its connector.
    """
    if key.casefold().startswith("agent:"):
        raise WebhookSessionNotAllowed
    return _normalize_session(key[len(SESSION_PREFIX) :] if key.casefold().startswith(SESSION_PREFIX) else key)


def _normalize_session(key: str) -> str:
    """Normalize a session key to one lowercase line. A long key is always truncated at the same length."""
    return " ".join(key.split())[:SESSION_CHARS_MAX].casefold()


def _allowed_delivery(settings: WebhookSettings, body: _AgentBody) -> str:
    if not body.deliver:
        return NO_DELIVERY
    where = f"channel:{body.channel}:{body.to}" if body.channel and body.to else body.to or body.channel
    if not where or where == "last" or any(matches_glob(glob, where) for glob in settings.deliver_to_allow):
        return "" if where == "last" else where
    raise WebhookDeliveryNotAllowed(where)


def _parse_effort(text: str | None) -> str | None:
    if not text:
        return None
    if text.casefold() not in EFFORT_WORDS:
        raise WebhookRequestInvalid(f"`thinking` must be one of {', '.join(EFFORT_WORDS)}")
    return EFFORT_WORDS[text.casefold()]
