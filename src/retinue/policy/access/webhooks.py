"""Validates a webhook before it is stored. Whether its host may be reached is checked at use."""

from __future__ import annotations

import re

from retinue.config.external_agents import ExternalSettings
from retinue.domain.errors import Invalid
from retinue.domain.webhook import Webhook

URL_LENGTH_MAX = 2_000
HEADERS_MAX = 20
HEADER_LENGTH_MAX = 2_000

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_OURS = frozenset({"host", "content-length", "content-type", "transfer-encoding", "connection", "user-agent"})


def check(settings: ExternalSettings, webhook: Webhook) -> None:
    if settings.webhook_secret is None:
        raise Invalid(
            "this house has no webhooks",
            because="nothing is set that would sign what is sent to them",
            try_this="set `webhook_secret` of [external]",
            code="webhook.no-key",
        )
    if because := _wrong(webhook):
        raise Invalid(
            "this webhook cannot be used",
            because=because,
            try_this='for example: {"url": "https://example.com/done", "headers": {"Authorization": "Bearer ..."}}',
            code="webhook.invalid",
        )


def _wrong(webhook: Webhook) -> str:
    scheme, _, rest = webhook.url.partition("://")
    if (
        scheme not in ("http", "https")
        or not rest
        or not webhook.url.isprintable()
        or len(webhook.url) > URL_LENGTH_MAX
    ):
        return f"its url must be a whole http or https address of at most {URL_LENGTH_MAX:,} characters"
    if len(webhook.headers) > HEADERS_MAX:
        return f"it may have {HEADERS_MAX} headers"
    for name, value in webhook.headers.items():
        if not _NAME.fullmatch(name) or name.lower() in _OURS or name.lower().startswith("x-retinue-"):
            return "one of its headers has a name that is none, or that the house itself sets"
        if len(value) > HEADER_LENGTH_MAX or not (value.isascii() and value.isprintable()):
            return f"the value of '{name}' must be at most {HEADER_LENGTH_MAX:,} printable characters of ASCII"
    return ""
