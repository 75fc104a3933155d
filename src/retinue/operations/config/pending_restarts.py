"""Records settings changes that need a restart, and reports them in a session after the restart.

The session is the most recently used one that the caller who changed the settings can see.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from retinue.domain import address
from retinue.domain.envelope import EnvelopeDraft, EnvelopeKind
from retinue.domain.errors import NotFound, StoreError
from retinue.domain.ids import EnvelopeId
from retinue.domain.ports import EnvelopeAcceptor, IdSource
from retinue.domain.trust import Trust
from retinue.store.core.durable_files import replace_private_file

log = logging.getLogger(__name__)

FILE_NAME, FORMER_NAME = "pending-restart.json", "waiting-for-restart.json"


class PendingRestart(msgspec.Struct):
    """The changed settings, and the agent and session to notify once they are in effect."""

    paths: list[str]
    agent: str
    session: str


def save_pending_restart(data_dir: Path, paths: Sequence[str], *, agent: str, session: str) -> None:
    """Save the paths of the changed settings in a file, so that the session is notified after the restart.

    After several changes, only the session that was saved last is notified.
    """
    (data_dir / FORMER_NAME).unlink(missing_ok=True)
    replace_private_file(data_dir / FILE_NAME, msgspec.json.encode(PendingRestart(list(paths), agent, session)))


async def announce_restart(data_dir: Path, intake: EnvelopeAcceptor, ids: IdSource) -> None:
    """Notify the saved session that the changes of settings are now in effect.

    The notification is an envelope. Its idempotency key is derived from the file with the pending
    changes, so that it is sent only once. The file is deleted when the envelope is accepted, or if the
    session or the agent no longer exists. If the store fails, the file is kept for the next start.
    """
    file = data_dir / FILE_NAME
    if not file.exists():
        file = data_dir / FORMER_NAME  # written by an earlier version
    try:
        text = file.read_bytes()
        waiting = msgspec.json.decode(text, type=PendingRestart)
    except (OSError, msgspec.MsgspecError):
        return
    draft = EnvelopeDraft(
        id=EnvelopeId(ids.new()),
        sender=address.SERVER_ADDRESS,
        recipient=address.agent_address(waiting.agent, waiting.session),
        text=f"The server was restarted. Now in effect: {', '.join(waiting.paths)}.",
        source="server",
        idempotency_key=f"restart/{hashlib.sha256(text).hexdigest()[:32]}/{file.stat().st_mtime_ns}",
        kind=EnvelopeKind.SYSTEM,
        silent=True,  # stored for the next turn; starts no run
        trust=Trust.PRIVATE,
    )
    try:
        await intake.accept(draft)
    except NotFound:
        log.info(
            "restart notification dropped, session gone", extra={"session": waiting.session}
        )  # the session or its agent is gone
    except StoreError as error:
        log.warning("restart notification failed", extra={"code": error.code})
        return
    file.unlink(missing_ok=True)
