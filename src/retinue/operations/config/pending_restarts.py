"""Record settings changes that wait for a restart, and report them in their session after the restart."""

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
    """The changed settings, and the agent and session to notify once they are in effect."""

    paths: list[str]
    agent: str
    session: str


def write_down(home: Path, paths: Sequence[str], *, agent: str, session: str) -> None:
    """Save the changes in a file, so that they survive the restart. Only the session of the last change is notified."""
    put_private(home / FILE_NAME, msgspec.json.encode(Waiting(list(paths), agent, session)))


async def tell(home: Path, post: Post, ids: Ids) -> None:
    """Send the notification, once.

    The idempotency key is derived from the file. The file is deleted when the envelope is accepted, or
    when its session or agent is gone. If the store fails, it stays for the next start.
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
        silent=True,  # stored for the next turn; starts no run
        trust=Trust.PRIVATE,
    )
    try:
        await post.post(draft)
    except NotFound:
        log.info("restart told to nobody", extra={"session": waiting.session})  # the session or its agent is gone
    except StoreError as error:
        log.warning("restart not told", extra={"code": error.code})
        return
    file.unlink(missing_ok=True)
