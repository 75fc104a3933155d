"""What was changed and waits for a restart: written down, and told where it was asked for once the restart has come."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from retinue.domain import address
from retinue.domain.envelope import Draft, Kind
from retinue.domain.errors import NotFound, StoreError
from retinue.domain.ids import EnvelopeId
from retinue.domain.ports import Ids, Post
from retinue.domain.trust import Trust
from retinue.store.core.durable_files import put_private

log = logging.getLogger(__name__)

FILE_NAME = "waiting-for-restart.json"


class Waiting(msgspec.Struct):
    """Which settings, and the agent and session in which someone will want to hear that they are in effect."""

    paths: list[str]
    agent: str
    session: str


def write_down(home: Path, paths: Sequence[str], *, agent: str, session: str) -> None:
    """In a file, for it must outlive the house that the change is about. The last one to change something is told."""
    put_private(home / FILE_NAME, msgspec.json.encode(Waiting(list(paths), agent, session)))


async def tell(home: Path, post: Post, ids: Ids) -> None:
    """Once: the envelope's key comes from the note, and the note goes when it is accepted, or when nobody waits for it.

    Where the store cannot take it now, the note stays for the next start.
    """
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
    except NotFound:
        log.info("restart told to nobody", extra={"session": waiting.session})  # it, or its agent, is no longer here
    except StoreError as error:
        log.warning("restart not told", extra={"code": error.code})
        return
    file.unlink(missing_ok=True)
