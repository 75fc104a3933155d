"""Webhooks: an address elsewhere that is told once what came of a letter."""

from __future__ import annotations

import re

from msgspec import Struct

from retinue.domain.errors import Invalid

URL_LENGTH_MAX = 2_000
HEADERS_MAX = 20
HEADER_LENGTH_MAX = 2_000

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_OURS = frozenset({"host", "content-length", "content-type", "transfer-encoding", "connection", "user-agent"})


class Webhook(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`headers` go with the request, and may hold a secret: they are in no log, no list and no error."""

    url: str
    headers: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Webhook(url={self.url!r}, {len(self.headers)} headers)"


def check(webhook: Webhook) -> None:
    """Whether it can be kept and used at all. Where it may lead is asked when it is used."""
    scheme, _, rest = webhook.url.partition("://")
    if (
        scheme not in ("http", "https")
        or not rest
        or len(webhook.url) > URL_LENGTH_MAX
        or not webhook.url.isprintable()
    ):
        raise _unusable(f"its url must be a whole http or https address of at most {URL_LENGTH_MAX:,} characters")
    if len(webhook.headers) > HEADERS_MAX:
        raise _unusable(f"it may have {HEADERS_MAX} headers")
    for name, value in webhook.headers.items():
        if not _NAME.fullmatch(name) or name.lower() in _OURS or name.lower().startswith("x-retinue-"):
            raise _unusable("one of its headers has a name that is none, or that the house itself sets")
        if len(value) > HEADER_LENGTH_MAX or not (value.isascii() and value.isprintable()):
            raise _unusable(
                f"the value of '{name}' must be at most {HEADER_LENGTH_MAX:,} printable characters of ASCII"
            )


def _unusable(because: str) -> Invalid:
    return Invalid(
        "this webhook cannot be used",
        because=because,
        try_this='for example: {"url": "https://example.com/done", "headers": {"Authorization": "..."}}',
        code="webhook.invalid",
    )
