"""Builds the system prompt of a run from files, templates and the store.

Called for every run. Files are read once per conversation and stored with it, so an agent's
instructions do not change during a conversation; everything else is current. If nothing has changed
since the last run, nothing is rendered. A new text is stored before it is used.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import sqlalchemy as sa
from msgspec import Struct, field

from retinue.agents import instruction_templates
from retinue.agents.instruction_files import Look, Snapshot, take
from retinue.agents.instruction_sections import BUILT_IN
from retinue.agents.instruction_templates import Marks, Template, TemplateBroken
from retinue.agents.instructions import Mode, Part, Section, Situation, joined, told
from retinue.domain.agent import Agent
from retinue.domain.ids import NotificationId, derived
from retinue.domain.notification import TEXT_LENGTH_MAX, Notification
from retinue.domain.ports import Clock
from retinue.domain.session import Session
from retinue.domain.structs import replace
from retinue.domain.times import from_ms, to_ms
from retinue.domain.trust import Trust
from retinue.store.agents import approved_hashes
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Page
from retinue.store.people import notifications, people
from retinue.store.sessions import instructions
from retinue.store.sessions.instructions import Kept

log = logging.getLogger(__name__)

SESSIONS_MAX = 1_000  # whose prompt is cached
SCOPES_MAX = 1_000
KIND = "instructions"  # in the table of approved hashes

_encode = msgspec.json.Encoder().encode
_snapshot = msgspec.json.Decoder(Snapshot)


class Counted(NamedTuple):
    """The size of one section. Text of a template outside its sections counts under the name `template`."""

    name: str
    chars: int
    tokens: int


_counted = msgspec.json.Decoder(tuple[Counted, ...])


class Told(Struct, frozen=True):
    """A rendered system prompt, and the size of its sections."""

    text: str
    parts: tuple[Counted, ...]
    template: str = ""  # hash of the owner's template; empty for the built-in one
    files: tuple[tuple[str, Counted], ...] = ()  # previews only: section and size of each file
    words: Mapping[str, str] = field(default_factory=dict[str, str])  # previews only: text of each section by its name


class Whose(Struct, frozen=True):
    """The agent and session that a prompt is for. Without a session: a conversation that is about to start."""

    agent: Agent
    home: Path
    workspace: Path
    session: Session | None = None

    @property
    def began(self) -> str:
        """Identifies the conversation: a reset or a summary starts another one."""
        return f"{self.session.context_from}/{self.session.compactions}" if self.session is not None else ""

    @property
    def first(self) -> bool:
        return self.session is None or (self.session.context_from <= 1 and not self.session.compactions)

    def fits(self, snapshot: Snapshot) -> bool:
        return snapshot.workspace == str(self.workspace) and snapshot.wanted == self.agent.context_files


class _Known(Struct):
    """The last prompt of a session."""

    began: str
    snapshot: Snapshot
    situation: Situation | None = None
    template: Template | None = None
    told: Told | None = None


class Previews(Protocol):
    """Renders the system prompt that an agent would get, without using it."""

    async def shown(
        self,
        agent: Agent,
        session: Session | None,
        *,
        mode: Mode | None = None,
        files: Mapping[str, str] | None = None,
    ) -> Told: ...


class Briefing:
    """Builds and caches the system prompts of sessions."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        home: Path,
        look: Look,
        weigh: Callable[[str], int],
        owner: str,
        mask: Callable[[str], str] = str,
        sections: Sequence[Section] = BUILT_IN,
    ) -> None:
        """`count_tokens` estimates the tokens of a text; `redact` removes secrets from the content of files."""
        self._store = store
        self._clock = clock
        self._look = look
        self._weigh = weigh
        self._mask = mask
        self._sections = tuple(sections)
        self._templates = Templates(home / instruction_templates.FOLDER, store, clock, self._sections, owner)
        self._sessions: OrderedDict[str, _Known] = OrderedDict()
        self._lately: dict[str, _Known] = {}  # by agent: prompts of its conversations are mostly the same

    async def brief(self, whose: Whose, at: Situation) -> Told:
        """Return the system prompt of a run. `context` comes without files: those are the session's."""
        assert whose.session is not None
        known = await self._known(whose)
        template = await self._templates.of(whose.agent.name)
        situation = _with_files(at, known.snapshot)
        if known.told is None or known.situation != situation or known.template != template:
            made = await self._told(whose, known, situation, template)
            if known.told is None or known.told.text != made.text:
                await self._keep(whose.session, known, made)
            known.situation, known.template, known.told = situation, template, made
        return known.told

    async def preview(self, whose: Whose, at: Situation, *, template: Template | None = None) -> Told:
        """Return the prompt that a run would get now, and change nothing.

        `template` is tried in place of the agent's own.
        """
        known = await self._known(whose, remember=False)
        situation = _with_files(at, known.snapshot)
        if template is not None:
            await asyncio.to_thread(template.check, self._sections)
        made = self._render(situation, template or await self._templates.of(whose.agent.name))
        within = {
            "files": situation.files,
            "context-files": situation.context_files,
            "memory": (situation.memory.longterm, *situation.memory.days),
        }
        used = {part.name for part in made.parts}
        files = [
            (section, self._count(Part(file.name, file.text)))
            for section, some in within.items()
            for file in some
            if section in used and file.text
        ]
        words = {part.name: part.text for part in told(situation, self._sections) if part.name in used}
        return replace(made, files=tuple(files), words=words)

    def at_hand(self, session: str) -> str | None:
        """Return the last prompt of a session if it is cached."""
        known = self._sessions.get(session)
        return known.told.text if known is not None and known.told is not None else None

    # --- the files that a conversation started with ---

    async def _known(self, whose: Whose, *, remember: bool = True) -> _Known:
        session = whose.session
        known_id = session.id if session is not None else ""
        known = self._sessions.get(known_id)
        if known is not None and known.began == whose.began and whose.fits(known.snapshot):
            self._sessions.move_to_end(known_id)
            return known
        known = await self._stored(whose) or _Known(whose.began, await self._taken(whose))
        if session is not None and remember:
            self._sessions[known_id] = known
            self._sessions.move_to_end(known_id)
            if len(self._sessions) > SESSIONS_MAX:
                self._sessions.popitem(last=False)
        return known

    async def _stored(self, whose: Whose) -> _Known | None:
        if whose.session is None:
            return None
        kept = await self._store.read(partial(instructions.get, session=whose.session.id))
        if kept is None or kept.began != whose.began:
            return None
        try:
            snapshot, parts = _snapshot.decode(kept.snapshot), _counted.decode(kept.parts)
        except msgspec.MsgspecError:  # written by another version: read the files again
            return None
        if not whose.fits(snapshot):
            return None
        # It is rendered again: the stored text only shows whether the prompt has changed.
        return _Known(kept.began, self._shared(whose, snapshot), told=Told(kept.text, parts))

    async def _taken(self, whose: Whose) -> Snapshot:
        snapshot = await take(
            self._look,
            home=whose.home,
            workspace=whose.workspace,
            wanted=whose.agent.context_files,
            first=whose.first,
            mask=self._mask,
        )
        return self._shared(whose, snapshot)

    def _shared(self, whose: Whose, snapshot: Snapshot) -> Snapshot:
        """Keep equal snapshots of an agent's conversations in memory once."""
        lately = self._lately.get(whose.agent.name)
        return lately.snapshot if lately is not None and lately.snapshot == snapshot else snapshot

    # --- the text ---

    async def _told(self, whose: Whose, known: _Known, situation: Situation, template: Template | None) -> Told:
        lately = self._lately.get(whose.agent.name)
        if lately is not None and lately.told is not None and lately.template == template:
            if lately.situation == situation:
                return lately.told
        try:
            made = self._render(situation, template)
        except TemplateBroken as broken:
            # It passed its check and fails now: keep the session's last prompt, or else use the built-in one.
            await self._templates.complain(whose.agent.name, broken)
            made = known.told or self._render(situation, None)
        if len(self._lately) >= SCOPES_MAX:
            self._lately.clear()
        self._lately[whose.agent.name] = _Known("", known.snapshot, situation, template, made)
        return made

    def _render(self, situation: Situation, template: Template | None) -> Told:
        parts = told(situation, self._sections)
        if template is None:
            return Told(joined(parts), tuple(self._count(part) for part in parts))
        text, used = template.rendered(situation, parts)
        counted = [self._count(part) for part in used]
        beside = max(self._weigh(text) - sum(each.tokens for each in counted), 0)
        chars = max(len(text) - sum(each.chars for each in counted), 0)
        return Told(text, (*counted, Counted("template", chars, beside)), template.hash)

    def _count(self, part: Part) -> Counted:
        return Counted(part.name, len(part.text), self._weigh(part.text))

    async def _keep(self, session: Session, known: _Known, made: Told) -> None:
        kept = Kept(
            began=known.began,
            snapshot=_encode(known.snapshot).decode(),
            text=made.text,
            parts=_encode(made.parts).decode(),
            at_ms=to_ms(self._clock.now()),
        )
        await self._store.write(partial(instructions.put, session=session.id, kept=kept), point="instructions")


def _with_files(at: Situation, snapshot: Snapshot) -> Situation:
    return msgspec.structs.replace(
        at, files=snapshot.files, context_files=snapshot.context_files, memory=snapshot.memory
    )


# --- templates: the current and the last valid ones ---


class _Taken(NamedTuple):
    marks: Marks
    template: Template | None


class Templates:
    """Loads the template of each agent.

    An invalid template is reported once, and the last valid one stays in use.
    """

    def __init__(self, folder: Path, store: Store, clock: Clock, sections: Sequence[Section], owner: str) -> None:
        self._folder = folder
        self._name = str(folder)
        self._store = store
        self._clock = clock
        self._sections = sections
        self._owner = owner
        self._taken: dict[str, _Taken] = {}

    async def of(self, agent: str) -> Template | None:
        """Return the template of an agent; None for the built-in one."""
        found = instruction_templates.marks(self._name, agent)
        taken = self._taken.get(agent)
        if taken is not None and taken.marks == found:
            return taken.template
        if not found and taken is None:
            return None
        template = await self._load(agent, found, before=taken.template if taken is not None else None)
        if len(self._taken) >= SCOPES_MAX:
            self._taken.clear()
        self._taken[agent] = _Taken(found, template)
        return template

    async def _load(self, agent: str, found: Marks, *, before: Template | None) -> Template | None:
        scope = instruction_templates.scope_of(found, self._name, agent)
        try:
            template = await asyncio.to_thread(self._read, agent)
        except TemplateBroken as broken:
            await self.complain(agent, broken)
            return before or await self._last_good(scope)
        if template is not None:
            await self._store.write(
                partial(_pin, scope=scope, template=template, at_ms=self._now()), point="instructions"
            )
        log.info("template taken", extra={"agent": agent, "hash": template.hash[:16] if template else "none"})
        return template

    def _read(self, agent: str) -> Template | None:
        try:
            template = instruction_templates.load(self._folder, agent)
        except OSError as error:
            raise TemplateBroken(
                "this template cannot be read", because=str(error), try_this="look at its folder"
            ) from error
        if template is not None:
            template.check(self._sections)
        return template

    async def _last_good(self, scope: str) -> Template | None:
        pin = await self._store.read(partial(approved_hashes.find, kind=KIND, name=scope or "house"))
        if pin is None:
            return None
        template = Template(msgspec.json.decode(pin.content, type=dict[str, str]))
        try:
            await asyncio.to_thread(template.check, self._sections)
        except TemplateBroken as broken:  # valid for an older version only
            log.error("kept template not usable", extra={"scope": scope, "because": broken.because})
            return None
        return template

    async def complain(self, agent: str, broken: TemplateBroken) -> None:
        """Log the error and notify the owner, once for each error."""
        log.error("template not taken", extra={"agent": agent, "error": broken.sentence, "because": broken.because})
        what = hashlib.sha256(f"{broken.sentence}\0{broken.because}".encode()).hexdigest()[:32]
        at_ms = self._now()
        notice = Notification(
            id=NotificationId(derived(what, "template")),
            person=self._owner,
            sender="house",
            session=None,
            title="A template for instructions cannot be used",
            text=f"{broken.sentence}: {broken.because}. The last good one stays."[:TEXT_LENGTH_MAX],
            trust=Trust.PRIVATE,
            at=from_ms(at_ms),
            read_at=None,
        )
        await self._store.write(partial(_notify, notice=notice, at_ms=at_ms), point="instructions")

    def _now(self) -> int:
        return to_ms(self._clock.now())


def _pin(conn: sa.Connection, *, scope: str, template: Template, at_ms: int) -> None:
    name = scope or "house"
    pin = approved_hashes.find(conn, KIND, name)
    if pin is None or pin.hash != template.hash:
        content = _encode(dict(template.files)).decode()
        approved_hashes.put(conn, KIND, name, hash_=template.hash, content=content, decided_by="house", at_ms=at_ms)


def _notify(conn: sa.Connection, *, notice: Notification, at_ms: int) -> None:
    if people.find(conn, notice.person) is None:
        return
    page = Page(conn, at_ms)
    notifications.add(page, notice)
    page.close()


def findings(house: Path, agents: Sequence[str], sections: Sequence[Section] = BUILT_IN) -> dict[str, TemplateBroken]:
    """Return the invalid templates on disk by agent, for `doctor`. The shared template has the key `house`."""
    folder = house / instruction_templates.FOLDER
    found: dict[str, TemplateBroken] = {}
    if not folder.is_dir():
        return found
    for agent in ("", *(name for name in agents if os.path.isdir(folder / name))):
        try:
            template = instruction_templates.load(folder, agent)
            if template is not None:
                template.check(sections)
        except TemplateBroken as broken:
            found[agent or "house"] = broken
    return found
