"""Callbacks of external agents over HTTP: signed text, without a token."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from retinue.domain.errors import NotFound
from retinue.intake.external_callbacks import Callbacks, Came
from retinue.net.signatures import ABOUT, LETTER, SIGNATURE, TIMESTAMP

PREFIX = "/external/"
_SESSIONS, _MESSAGES = f"{PREFIX}sessions/", "/messages"

_encode = msgspec.json.Encoder().encode


def session_of(path: str) -> str:
    """Return the session of a callback path. Raises `NotFound` for any other path."""
    session = path.removeprefix(_SESSIONS).removesuffix(_MESSAGES)
    if not session or path != f"{_SESSIONS}{session}{_MESSAGES}" or "/" in session:
        raise NotFound(
            f"nothing is served at {path[:200]}",
            because=f"agents that run elsewhere answer to {_SESSIONS}ID{_MESSAGES}",
            try_this="answer to the `callbackUrl` that came with the letter",
            code="route.not-found",
        )
    return session


async def take(callbacks: Callbacks, session: str, headers: Mapping[bytes, bytes], body: bytes) -> bytes:
    def said(name: str) -> str:
        return headers.get(name.lower().encode(), b"").decode("latin-1").strip()

    came = Came(
        session=session,
        at=said(TIMESTAMP),
        signature=said(SIGNATURE),
        message=said(LETTER),
        request=said(ABOUT),
        body=body,
    )
    heard = await callbacks.take(came)
    return _encode({"sessionId": session, "envelope": heard.envelope, "answers": heard.answers})
