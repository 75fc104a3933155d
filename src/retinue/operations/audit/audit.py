"""Operations on the audit log: list, verify and export, and the job that anchors its hash chains hourly."""

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
from retinue.domain.audit import HOUSE_CHAIN, Anchor, AuditKind, Link, as_line, canonical
from retinue.domain.errors import Invalid, RetinueError
from retinue.domain.ids import ID_LENGTH, SessionId, short
from retinue.domain.principal import Principal
from retinue.domain.times import from_ms, parse_when, show, to_ms
from retinue.operations.base import Desk, Operation
from retinue.store.agents import audit
from retinue.store.agents.audit import POSITION_MAX, Before, Place, Verified
from retinue.store.sessions import sessions

log = logging.getLogger(__name__)

ANCHOR_EVERY_S = 3_600.0
LISTED_SHOWN, LISTED_MAX = 50, 1_000
EXPORTED_MAX = 20_000  # entries per response
ANCHORS_GIVEN_MAX = 100
LOG_FILES_MAX = 100
LOG_BYTES_MAX = 64 * 1024 * 1024  # over all log files
HOUSE_NAME = "house"
ANCHORED = "audit anchored"

_ANCHOR = re.compile(rf"({HOUSE_NAME}|[0-9a-f]{{{ID_LENGTH}}}):(\d{{1,18}}):([0-9a-f]{{64}})")
_ANCHOR_LINE = re.compile(rf'^\S+ info "{ANCHORED}" anchor=({_ANCHOR.pattern})$')
_CURSOR = re.compile(rf"(?:(\d{{1,18}})-)?({HOUSE_NAME}|[0-9a-f]{{{ID_LENGTH}}})-(\d{{1,18}})")

Session = Annotated[str, msgspec.Meta(description="only the chain of this session; `house` is the house's own")]


class List(msgspec.Struct, forbid_unknown_fields=True):
    session: Session = ""
    kind: Annotated[AuditKind | None, msgspec.Meta(description="only lines of this kind")] = None
    agent: Annotated[str, msgspec.Meta(description="only lines about this agent")] = ""
    who: Annotated[str, msgspec.Meta(description="only what this address did or decided: person:NAME, agent:NAME")] = ""
    since: Annotated[str, msgspec.Meta(description="only from this time on: -7D, or 2026-01-28T20:30")] = ""
    before: Annotated[str, msgspec.Meta(description="where the last page ended")] = ""
    limit: int = LISTED_SHOWN


class Verify(msgspec.Struct, forbid_unknown_fields=True):
    session: Session = ""
    anchor: Annotated[list[str], msgspec.Meta(description="an anchor that you kept, CHAIN:POSITION:HASH")] = []
    log: Annotated[bool, msgspec.Meta(description="also by the anchors in the house's log")] = False


class Export(msgspec.Struct, forbid_unknown_fields=True):
    session: Session = ""
    after: Annotated[str, msgspec.Meta(description="where the last part ended, as its last line says")] = ""
    limit: Annotated[int, msgspec.Meta(description="how many lines at most")] = EXPORTED_MAX


class AuditShown(msgspec.Struct, frozen=True, rename="kebab"):
    """One audit entry. `session` is empty in the instance's own chain."""

    at: str
    kind: str
    who: str
    agent: str
    subject: str
    verdict: str
    because: str
    run: str | None
    session: str
    position: int
    content: str
    hash: str


class AuditListed(msgspec.Struct, frozen=True):
    """One page. `next` is the `before` of the next page."""

    audit: list[AuditShown]
    next: str | None


class FlawShown(msgspec.Struct, frozen=True):
    session: str
    position: int
    sentence: str


class AuditVerified(msgspec.Struct, frozen=True):
    """Result of a verification. `lines` is the report as text."""

    holds: bool
    checked: int
    chains: int
    anchors: int
    flaws: list[FlawShown]
    lines: list[str]


class AuditExported(msgspec.Struct, frozen=True):
    """`lines` are JSON: a header, then one line per entry and per anchor. `next` is the `after` of the next part."""

    lines: list[str]
    next: str | None


async def listing(desk: Desk, caller: Principal, asked: List) -> AuditListed:
    _refuse_unless(1 <= asked.limit <= LISTED_MAX, f"a page has 1 to {LISTED_MAX:,} lines", "limit")
    before = _before(asked.before)
    since = parse_when(asked.since, now=desk.clock.now(), zone=desk.zone) if asked.since else None

    def body(conn: sa.Connection) -> list[Link]:
        return audit.listed(
            conn,
            limit=asked.limit + 1,
            before=before,
            chain=_chain(conn, caller, asked.session),
            kind=asked.kind.value if asked.kind is not None else "",
            agent=asked.agent,
            who=asked.who,
            since_ms=to_ms(since) if since is not None else None,
            seen_by=caller,
        )

    found = await desk.store.scan(body)
    shown, more = found[: asked.limit], len(found) > asked.limit
    last = shown[-1] if shown else None
    return AuditListed(
        audit=[_form(desk, each) for each in shown],
        next=f"{last.at_ms}-{last.chain or HOUSE_NAME}-{last.position}" if more and last is not None else None,
    )


async def verify(desk: Desk, caller: Principal, asked: Verify) -> AuditVerified:
    outside = [_anchor(text) for text in asked.anchor[:ANCHORS_GIVEN_MAX]]
    if asked.log:
        outside += await asyncio.to_thread(anchors_in_log, desk.home / "logs")

    def body(conn: sa.Connection) -> Verified:
        chain = _chain(conn, caller, asked.session)
        mine = [each for each in outside if chain in (None, each.chain)]
        return audit.verify(conn, chain=chain, outside=mine)

    found = await desk.store.scan(body)
    flaws = [FlawShown(each.chain, each.position, each.sentence) for each in found.flaws]
    verdict = (
        f"the audit holds: {found.lines:,} lines in {found.chains:,} chains, {found.anchors:,} anchors"
        if found.holds
        else f"the audit does not hold: {len(flaws)} flaws in {found.lines:,} lines"
    )
    return AuditVerified(
        holds=found.holds,
        checked=found.lines,
        chains=found.chains,
        anchors=found.anchors,
        flaws=flaws,
        lines=[*(f"flaw: {_place(each)}: {each.sentence}" for each in flaws), verdict],
    )


async def export(desk: Desk, caller: Principal, asked: Export) -> AuditExported:
    """Export the audit log chain by chain, with anchors. `examples/verify_audit.py` verifies it offline."""
    _refuse_unless(1 <= asked.limit <= EXPORTED_MAX, f"one part has 1 to {EXPORTED_MAX:,} lines", "limit")
    after = _after(asked.after)

    def body(conn: sa.Connection) -> AuditExported:
        chain = _chain(conn, caller, asked.session)
        begin: Place = after or (chain or HOUSE_CHAIN, -POSITION_MAX)
        found = audit.some(conn, chain=chain, after=begin, limit=asked.limit + 1)
        shown, more = found[: asked.limit], len(found) > asked.limit
        end: Place | None = (shown[-1].chain, shown[-1].position) if more else None
        anchors = audit.anchors(conn, after=begin, last=end)
        lines = [] if asked.after else [canonical({"export": {"chain": chain}})]
        lines += [canonical({**as_line(each), "hash": each.hash}) for each in shown]
        lines += [canonical({"anchor": structs.asdict(each)}) for each in anchors if chain in (None, each.chain)]
        if end is None:
            return AuditExported(lines=lines, next=None)
        cursor = f"{end[0] or HOUSE_NAME}-{end[1]}"
        return AuditExported(lines=[*lines, canonical({"cut": {"after": cursor}})], next=cursor)

    return await desk.store.scan(body)  # in a thread: there may be many entries


def _chain(conn: sa.Connection, caller: Principal, text: str) -> str | None:
    if not text:
        return None
    return HOUSE_CHAIN if text == HOUSE_NAME else sessions.resolve(conn, text, seen_by=caller).id


def _form(desk: Desk, link: Link) -> AuditShown:
    return AuditShown(
        at=show(from_ms(link.at_ms), desk.zone),
        kind=link.kind,
        who=link.who,
        agent=link.agent,
        subject=link.subject,
        verdict=link.verdict,
        because=link.because,
        run=link.run,
        session=link.chain,
        position=link.position,
        content=link.content,
        hash=link.hash,
    )


def _place(flaw: FlawShown) -> str:
    return f"{short(SessionId(flaw.session)) if flaw.session else HOUSE_NAME} line {flaw.position}"


def _anchor(text: str) -> Anchor:
    found = _ANCHOR.fullmatch(text.strip())
    _refuse_unless(found is not None, "an anchor is CHAIN:POSITION:HASH, as the log has it", "anchor")
    assert found is not None
    return Anchor(0, _chain_named(found[1]), int(found[2]), found[3])


def _before(text: str) -> Before | None:
    if not text:
        return None
    found = _CURSOR.fullmatch(text)
    _refuse_unless(found is not None and found[1] is not None, "it is what `next` said on the page before", "before")
    assert found is not None
    return int(found[1]), _chain_named(found[2]), int(found[3])


def _after(text: str) -> Place | None:
    if not text:
        return None
    found = _CURSOR.fullmatch(text)
    _refuse_unless(found is not None and found[1] is None, "it is what the last line of the part before said", "after")
    assert found is not None
    return _chain_named(found[2]), int(found[3])


def _chain_named(name: str) -> str:
    return HOUSE_CHAIN if name == HOUSE_NAME else name


def _refuse_unless(fits: bool, because: str, name: str) -> None:
    if not fits:
        raise Invalid(
            f"`{name}` does not fit",
            because=because,
            try_this="look at the operation's reference page",
            code="audit.bad-question",
        )


# --- anchors ---


async def anchor_forever(desk: Desk) -> None:
    """Record the ends of the chains every hour: in the store, and in the log, which is outside the store."""
    while True:
        await anchor_now(desk)
        await desk.clock.sleep(ANCHOR_EVERY_S)


async def anchor_now(desk: Desk) -> Anchor | None:
    try:
        made = await desk.store.write(partial(audit.anchor, now_ms=to_ms(desk.clock.now())), point="anchor")
    except RetinueError as error:  # for example a full disk; the next anchor covers this hour too
        log.warning("audit not anchored", extra={"code": error.code})
        return None
    if made is not None:
        log.info(ANCHORED, extra={"anchor": f"{HOUSE_NAME}:{made.position}:{made.hash}"})
    return made


def anchors_in_log(folder: Path) -> list[Anchor]:
    """Return the anchors found in the server's log files, as far back as these are kept."""
    found: dict[str, Anchor] = {}
    room = LOG_BYTES_MAX
    for path in sorted(folder.glob("retinue.log*"))[:LOG_FILES_MAX]:
        try:
            with path.open("rb") as file:
                text = file.read(room).decode(errors="replace")
        except OSError:
            continue
        room -= len(text)
        for line in text.splitlines():
            if ANCHORED in line and (match := _ANCHOR_LINE.fullmatch(line)) is not None:
                found[match[1]] = _anchor(match[1])
        if room <= 0:
            break
    return list(found.values())


OPERATIONS = (
    Operation(
        name="audit.list",
        summary="Show what was decided and done, the newest first.",
        parameters=List,
        handler=listing,
        result=AuditListed,
        permission=PermissionLevel.STANDARD,
    ),
    Operation(
        name="audit.verify",
        summary="See whether the audit is as it was written.",
        parameters=Verify,
        handler=verify,
        result=AuditVerified,
        permission=PermissionLevel.BOSS,
    ),
    Operation(
        name="audit.export",
        summary="Give the audit out as lines of JSON.",
        parameters=Export,
        handler=export,
        result=AuditExported,
        permission=PermissionLevel.BOSS,
    ),
)
