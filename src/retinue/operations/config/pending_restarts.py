"""Record settings changes that wait for a restart, and report them after the restart in the session that made them."""

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
    """Save the changed settings in a file, so that the session that made the change can be notified after the restart.

    Only the session of the last change is notified.
    """
    (data_dir / FORMER_NAME).unlink(missing_ok=True)
    replace_private_file(data_dir / FILE_NAME, msgspec.json.encode(PendingRestart(list(paths), agent, session)))


async def announce_restart(data_dir: Path, intake: EnvelopeAcceptor, ids: IdSource) -> None:
    """Notify the session that changed the settings, once, that the changes are in effect.

    The idempotency key is derived from the file. The file is deleted when the envelope is accepted, or when its session
    or agent is gone. If the store fails, the file stays for the next start.
    """
    file = data_dir / FILE_NAME
    if not file.exists():
        file = data_dir / FORMER_NAME  # an earlier version has written it
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
