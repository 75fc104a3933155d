"""Operations that list, verify and export the audit log, and the task that anchors its hash chains every hour."""

from __future__ import annotations

import asyncio
import logging
import re
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import sqlalchemy as sa
from msgspec import structs

from retinue.domain.agent import PermissionLevel
from retinue.domain.audit import (
    SERVER_CHAIN,
    SERVER_CHAIN_NAME,
    AuditAnchor,
    AuditKind,
    AuditLink,
    canonical_json,
    hashed_fields,
)
from retinue.domain.errors import RetinueError
from retinue.domain.ids import ID_LENGTH, SessionId, short_id
from retinue.domain.principal import Principal
from retinue.domain.shared_errors import CursorInvalid
from retinue.domain.times import format_time, from_ms, parse_time, to_ms
from retinue.operations.audit.errors import AuditAnchorInvalid, AuditLimitInvalid
from retinue.operations.base import Operation, Services
from retinue.store.agents import audit
from retinue.store.agents.audit import POSITION_MAX, AuditPosition, AuditVerification, ChainPosition
from retinue.store.sessions import sessions
from retinue.text.quantity import format_quantity

log = logging.getLogger(__name__)

ANCHOR_EVERY_S = 3_600.0
LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX = 50, 1_000
EXPORT_LIMIT_MAX = 20_000  # entries per response
ANCHORS_MAX = 100
LOG_FILES_MAX = 100
LOG_BYTES_MAX = 64 * 1024 * 1024  # read from all log files together
FORMER_CHAIN_NAME = "house"  # in anchors and cursors that an earlier version printed
ANCHOR_LOG_PHRASE = "audit anchored"

_SERVER_CHAIN_NAMES = (SERVER_CHAIN_NAME, FORMER_CHAIN_NAME)
_ANCHOR = re.compile(
    rf"({SERVER_CHAIN_NAME}|{FORMER_CHAIN_NAME}|[0-9a-f]{{{ID_LENGTH}}}):(\d{{1,18}}):([0-9a-f]{{64}})"
)
_ANCHOR_LINE = re.compile(rf'^\S+ info "{ANCHOR_LOG_PHRASE}" anchor=({_ANCHOR.pattern})$')
_CURSOR = re.compile(
    rf"(?:(\d{{1,18}})-)?({SERVER_CHAIN_NAME}|{FORMER_CHAIN_NAME}|[0-9a-f]{{{ID_LENGTH}}})-(\d{{1,18}})"
)

ChainFilter = Annotated[
    str,
    msgspec.Meta(description="only the hash chain of this session, or `server` for the server's; default: all chains"),
]


class AuditListRequest(msgspec.Struct, forbid_unknown_fields=True):
    session: ChainFilter = ""
    kind: Annotated[AuditKind | None, msgspec.Meta(description="only entries of this kind")] = None
    agent: Annotated[str, msgspec.Meta(description="only entries about this agent")] = ""
    principal: Annotated[
        str, msgspec.Meta(description="only actions and decisions of this principal: person:NAME or agent:NAME")
    ] = ""
    since: Annotated[str, msgspec.Meta(description="only entries since this time: -7D or 2026-01-28T20:30")] = ""
    before: Annotated[str, msgspec.Meta(description="`next` of the previous page; default: the first page")] = ""
    limit: int = LIST_LIMIT_DEFAULT


class AuditVerifyRequest(msgspec.Struct, forbid_unknown_fields=True):
    session: ChainFilter = ""
    anchor: Annotated[list[str], msgspec.Meta(description="anchor that you saved, as CHAIN:POSITION:HASH")] = []
    log: Annotated[bool, msgspec.Meta(description="also verify the anchors in the server's log")] = False


class AuditExportRequest(msgspec.Struct, forbid_unknown_fields=True):
    session: ChainFilter = ""
    after: Annotated[str, msgspec.Meta(description="`next` of the previous part; default: the first part")] = ""
    limit: Annotated[int, msgspec.Meta(description="maximum number of entries")] = EXPORT_LIMIT_MAX


class AuditEntryDetails(msgspec.Struct, frozen=True):
    """One audit entry. It belongs to the hash chain of `session`, or to the server's chain if `session` is empty."""

    at: str
    kind: str
    principal: str
    agent: str
    subject: str
    decision: str
    because: str
    run: str | None
    session: str
    position: int
    content: str
    hash: str


class AuditEntryList(msgspec.Struct, frozen=True):
    """One page of audit entries. `next` is the `before` of the next page."""

    entries: list[AuditEntryDetails]
    next: str | None


class AuditFlaw(msgspec.Struct, frozen=True):
    session: str
    position: int
    sentence: str


class AuditVerifyResult(msgspec.Struct, frozen=True):
    """Result of a verification of the audit log. `lines` is the report as lines of text."""

    ok: bool
    checked: int
    chains: int
    anchors: int
    flaws: list[AuditFlaw]
    lines: list[str]


class AuditExport(msgspec.Struct, frozen=True):
    """One part of an exported audit log.

    Each item of `lines` is a JSON object: a header, then one object for each entry and each anchor.
    `next` is the value of `after` for the next part.
    """

    lines: list[str]
    next: str | None


async def list_entries(services: Services, caller: Principal, request: AuditListRequest) -> AuditEntryList:
    _check_limit(request.limit, LIST_LIMIT_MAX)
    before = _parse_before(request.before)
    since = parse_time(request.since, now=services.clock.now(), zone=services.zone) if request.since else None

    def body(conn: sa.Connection) -> list[AuditLink]:
        return audit.list_entries(
            conn,
            limit=request.limit + 1,
            before=before,
            chain=_resolve_chain(conn, caller, request.session),
            kind=request.kind.value if request.kind is not None else "",
            agent=request.agent,
            who=request.principal,
            since_ms=to_ms(since) if since is not None else None,
            seen_by=caller,
        )

    found = await services.store.scan(body)
    shown, more = found[: request.limit], len(found) > request.limit
    last = shown[-1] if shown else None
    return AuditEntryList(
        entries=[_to_details(services, each) for each in shown],
        next=f"{last.at_ms}-{last.chain or SERVER_CHAIN_NAME}-{last.position}" if more and last is not None else None,
    )


async def verify_audit(services: Services, caller: Principal, request: AuditVerifyRequest) -> AuditVerifyResult:
    outside = [_parse_anchor(text) for text in request.anchor[:ANCHORS_MAX]]
    if request.log:
        outside += await asyncio.to_thread(anchors_in_log, services.data_dir / "logs")

    def body(conn: sa.Connection) -> AuditVerification:
        chain = _resolve_chain(conn, caller, request.session)
        mine = [each for each in outside if chain in (None, each.chain)]
        return audit.verify(conn, chain=chain, outside=mine)

    found = await services.store.scan(body)
    flaws = [AuditFlaw(each.chain, each.position, each.sentence) for each in found.flaws]
    verdict = (
        f"the audit log is intact: {format_quantity(found.lines, 'entry', plural='entries')} in "
        f"{format_quantity(found.chains, 'chain')}, {format_quantity(found.anchors, 'anchor')}"
        if found.is_intact
        else f"the audit log is inconsistent: {format_quantity(len(flaws), 'flaw')} in "
        f"{format_quantity(found.lines, 'entry', plural='entries')}"
    )
    return AuditVerifyResult(
        ok=found.is_intact,
        checked=found.lines,
        chains=found.chains,
        anchors=found.anchors,
        flaws=flaws,
        lines=[*(f"flaw: {_format_position(each)}: {each.sentence}" for each in flaws), verdict],
    )


async def export_audit(services: Services, caller: Principal, request: AuditExportRequest) -> AuditExport:
    """Export the audit log with its anchors, one hash chain after the other.

    The script `examples/verify_audit.py` verifies an exported audit log offline.
    """
    _check_limit(request.limit, EXPORT_LIMIT_MAX)
    after = _parse_after(request.after)

    def body(conn: sa.Connection) -> AuditExport:
        chain = _resolve_chain(conn, caller, request.session)
        begin: ChainPosition = after or (chain or SERVER_CHAIN, -POSITION_MAX)
        found = audit.list_after(conn, chain=chain, after=begin, limit=request.limit + 1)
        shown, more = found[: request.limit], len(found) > request.limit
        end: ChainPosition | None = (shown[-1].chain, shown[-1].position) if more else None
        anchors = audit.list_anchors(conn, after=begin, last=end)
        lines = [] if request.after else [canonical_json({"export": {"chain": chain}})]
        lines += [canonical_json({**hashed_fields(each), "hash": each.hash}) for each in shown]
        lines += [canonical_json({"anchor": structs.asdict(each)}) for each in anchors if chain in (None, each.chain)]
        if end is None:
            return AuditExport(lines=lines, next=None)
        cursor = f"{end[0] or SERVER_CHAIN_NAME}-{end[1]}"
        return AuditExport(lines=[*lines, canonical_json({"cut": {"after": cursor}})], next=cursor)

    return await services.store.scan(body)  # in a thread: there may be many entries


def _resolve_chain(conn: sa.Connection, caller: Principal, text: str) -> str | None:
    if not text:
        return None
    return SERVER_CHAIN if text in _SERVER_CHAIN_NAMES else sessions.get_by_short_id(conn, text, seen_by=caller).id


def _to_details(services: Services, link: AuditLink) -> AuditEntryDetails:
    return AuditEntryDetails(
        at=format_time(from_ms(link.at_ms), services.zone),
        kind=link.kind,
        principal=link.who,
        agent=link.agent,
        subject=link.subject,
        decision=link.verdict,
        because=link.because,
        run=link.run,
        session=link.chain,
        position=link.position,
        content=link.content,
        hash=link.hash,
    )


def _format_position(flaw: AuditFlaw) -> str:
    return f"{short_id(SessionId(flaw.session)) if flaw.session else SERVER_CHAIN_NAME} entry {flaw.position}"


def _parse_anchor(text: str) -> AuditAnchor:
    found = _ANCHOR.fullmatch(text.strip())
    if found is None:
        raise AuditAnchorInvalid(text)
    return AuditAnchor(0, _chain_by_name(found[1]), int(found[2]), found[3])


def _parse_before(text: str) -> AuditPosition | None:
    if not text:
        return None
    found = _CURSOR.fullmatch(text)
    if found is None or found[1] is None:
        raise CursorInvalid(
            text, because="`before` must be the `next` of the previous page", try_this="leave it out for the first page"
        )
    return int(found[1]), _chain_by_name(found[2]), int(found[3])


def _parse_after(text: str) -> ChainPosition | None:
    if not text:
        return None
    found = _CURSOR.fullmatch(text)
    if found is None or found[1] is not None:
        raise CursorInvalid(
            text, because="`after` must be the `next` of the previous part", try_this="leave it out for the first part"
        )
    return _chain_by_name(found[2]), int(found[3])


def _chain_by_name(name: str) -> str:
    return SERVER_CHAIN if name in _SERVER_CHAIN_NAMES else name


def _check_limit(limit: int, limit_max: int) -> None:
    if not 1 <= limit <= limit_max:
        raise AuditLimitInvalid(limit, limit_max=limit_max)


# --- anchors ---


async def anchor_hourly(services: Services) -> None:
    """Record the latest hash of each audit chain every hour, in the store and in the log file."""
    while True:
        await anchor_audit(services)
        await services.clock.sleep(ANCHOR_EVERY_S)


async def anchor_audit(services: Services) -> AuditAnchor | None:
    try:
        made = await services.store.write(
            partial(audit.add_anchors, now_ms=to_ms(services.clock.now())), point="anchor"
        )
    except RetinueError as error:  # for example a full disk; the next anchor covers this hour too
        log.warning("audit not anchored", extra={"code": error.code})
        return None
    if made is not None:
        log.info(ANCHOR_LOG_PHRASE, extra={"anchor": f"{SERVER_CHAIN_NAME}:{made.position}:{made.hash}"})
    return made


def anchors_in_log(folder: Path) -> list[AuditAnchor]:
    """Return the anchors in the server's log files. Anchors in deleted log files are lost."""
    found: dict[str, AuditAnchor] = {}
    bytes_left = LOG_BYTES_MAX
    for path in sorted(folder.glob("retinue.log*"))[:LOG_FILES_MAX]:
        try:
            with path.open("rb") as file:
                text = file.read(bytes_left).decode(errors="replace")
        except OSError:
            continue
        bytes_left -= len(text)
        for line in text.splitlines():
            if ANCHOR_LOG_PHRASE in line and (match := _ANCHOR_LINE.fullmatch(line)) is not None:
                found[match[1]] = _parse_anchor(match[1])
        if bytes_left <= 0:
            break
    return list(found.values())


OPERATIONS = (
    Operation(
        name="audit.list",
        summary="List audit entries, newest first.",
        parameters=AuditListRequest,
        handler=list_entries,
        result=AuditEntryList,
        permission=PermissionLevel.STANDARD,
    ),
    Operation(
        name="audit.verify",
        summary="Verify that the audit log is unchanged.",
        parameters=AuditVerifyRequest,
        handler=verify_audit,
        result=AuditVerifyResult,
        permission=PermissionLevel.BOSS,
    ),
    Operation(
        name="audit.export",
        summary="Export the audit log as JSON lines.",
        parameters=AuditExportRequest,
        handler=export_audit,
        result=AuditExport,
        permission=PermissionLevel.BOSS,
    ),
)
