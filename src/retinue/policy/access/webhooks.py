"""Validates the URL and headers of a webhook before the webhook is stored.

The host of the URL is checked later, when the request is sent.
"""

from __future__ import annotations

import re

from retinue.config.external_agents import ExternalAgentSettings
from retinue.domain.webhook import Webhook
from retinue.policy.errors import WebhookInvalid, WebhookKeyMissing

URL_LENGTH_MAX = 2_000
HEADERS_MAX = 20
HEADER_LENGTH_MAX = 2_000

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_RESERVED_HEADERS = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "user-agent"}
)


def check_webhook(settings: ExternalAgentSettings, webhook: Webhook) -> None:
    if settings.webhook_secret is None:
        raise WebhookKeyMissing
    if because := _find_error(webhook):
        raise WebhookInvalid(because=because)


def _find_error(webhook: Webhook) -> str:
    scheme, _, rest = webhook.url.partition("://")
    if (
        scheme not in ("http", "https")
        or not rest
        or not webhook.url.isprintable()
        or len(webhook.url) > URL_LENGTH_MAX
    ):
        return f"its url must be a complete http or https URL of at most {URL_LENGTH_MAX:,} characters"
    if len(webhook.headers) > HEADERS_MAX:
        return f"the limit is {HEADERS_MAX} headers"
    for name, value in webhook.headers.items():
        if (
            not _HEADER_NAME.fullmatch(name)
            or name.lower() in _RESERVED_HEADERS
            or name.lower().startswith("x-retinue-")
        ):
            return "the name of a header is invalid, or reserved for the server"
        if len(value) > HEADER_LENGTH_MAX or not (value.isascii() and value.isprintable()):
            return f"the value of '{name}' must be at most {HEADER_LENGTH_MAX:,} printable ASCII characters"
    return ""
