"""What was changed and waits for a restart: written down, and told where it was asked for once the restart has come."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from retinue.domain import address
from retinue.domain.envelope import Draft, Kind, Trust
from retinue.domain.errors import RetinueError
from retinue.domain.ids import EnvelopeId
from retinue.domain.ports import Ids, Post

FILE_NAME = "waiting-for-restart.json"


class Waiting(msgspec.Struct):
    """Which settings, and the agent and session in which someone will want to hear that they are in effect."""

    paths: list[str]
    agent: str
    session: str


def write_down(home: Path, paths: Sequence[str], *, agent: str, session: str) -> None:
    """In a file, for it must outlive the house that the change is about. The last one to change something is told."""
    temporary = home / f".{FILE_NAME}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(Waiting(list(paths), agent, session)))
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(home / FILE_NAME)


async def tell(home: Path, post: Post, ids: Ids) -> None:
    """Once: the envelope's key comes from the note, and the note goes when it is accepted."""
    file = home / FILE_NAME
    try:
        text = file.read_bytes()
        waiting = msgspec.json.decode(text, type=Waiting)
    except (OSError, msgspec.MsgspecError):
        return
    draft = Draft(
        id=EnvelopeId(ids.new()),
        sender=address.HOUSE,
        recipient=address.agent(waiting.agent, waiting.session),
        text=f"The house was opened again. In effect now: {', '.join(waiting.paths)}.",
        source="house",
        key=f"restart/{hashlib.sha256(text).hexdigest()[:32]}/{file.stat().st_mtime_ns}",
        kind=Kind.SYSTEM,
        silent=True,  # written down for the next turn: nobody's model is asked for it
        trust=Trust.PRIVATE,
    )
    try:
        await post.post(draft)
    except RetinueError:
        return  # the session, or its agent, is no longer here; then nobody waits for it either
    finally:
        file.unlink(missing_ok=True)
