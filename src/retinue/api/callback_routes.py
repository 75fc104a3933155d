"""Receives callbacks of external agents over HTTP. A callback is authenticated by its signature, not by a token."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from retinue.api.errors import RouteNotFound
from retinue.intake.external_callbacks import CallbackIntake, RawCallback
from retinue.net.signatures import MESSAGE_ID_HEADER, REQUEST_ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER

CALLBACK_PREFIX = "/external/"
_SESSIONS_PREFIX, _MESSAGES_SUFFIX = f"{CALLBACK_PREFIX}sessions/", "/messages"

_encode = msgspec.json.Encoder().encode


def parse_callback_session(path: str) -> str:
    """Return the session id in a callback path. Raises `RouteNotFound` for any other path."""
    session = path.removeprefix(_SESSIONS_PREFIX).removesuffix(_MESSAGES_SUFFIX)
    if not session or path != f"{_SESSIONS_PREFIX}{session}{_MESSAGES_SUFFIX}" or "/" in session:
        raise RouteNotFound(
            path,
            form=f"{_SESSIONS_PREFIX}ID{_MESSAGES_SUFFIX} for answers of external agents",
            use="the `callbackUrl` that came with the message",
        )
    return session


async def receive_callback(
    callbacks: CallbackIntake, session: str, headers: Mapping[bytes, bytes], body: bytes
) -> bytes:
    def header(name: str) -> str:
        return headers.get(name.lower().encode(), b"").decode("latin-1").strip()

    callback = RawCallback(
        session=session,
        at=header(TIMESTAMP_HEADER),
        signature=header(SIGNATURE_HEADER),
        message=header(MESSAGE_ID_HEADER),
        request=header(REQUEST_ID_HEADER),
        body=body,
    )
    accepted = await callbacks.accept(callback)
    return _encode({"session": session, "envelope": accepted.envelope, "answered_envelope": accepted.answered_envelope})
