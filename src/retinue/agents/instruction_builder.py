"""Builds the system prompt of a run from files, templates and the store.

Called for every run. Files are read once per conversation and stored with it, so an agent's
instructions do not change during a conversation. Everything else is read again for each run. If
nothing has changed since the last run, the last prompt is reused. A new prompt is stored before it
is used.
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
from retinue.agents.instruction_files import InstructionSnapshot, ReadWithTrust, read_snapshot
from retinue.agents.instruction_sections import BUILT_IN_SECTIONS
from retinue.agents.instruction_templates import FileFingerprints, InstructionTemplate, InvalidTemplate, RenamedName
from retinue.agents.instructions import (
    InstructionSection,
    Mode,
    PromptContext,
    RenderedSection,
    join_sections,
    render_sections,
)
from retinue.domain.agent import Agent
from retinue.domain.ids import NotificationId, derive_id
from retinue.domain.notification import NOTIFICATION_TEXT_LENGTH_MAX, Notification
from retinue.domain.ports import Clock
from retinue.domain.session import Session
from retinue.domain.structs import replace
from retinue.domain.times import from_ms, to_ms
from retinue.domain.trust import Trust
from retinue.store.agents import content_approvals
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Transaction
from retinue.store.people import notifications, people
from retinue.store.sessions import instructions
from retinue.store.sessions.instructions import StoredInstructions

log = logging.getLogger(__name__)

CACHED_SESSIONS_MAX = 1_000  # sessions whose prompt is cached
CACHED_AGENTS_MAX = 1_000
APPROVAL_KIND = "instructions"  # in the table of approved hashes
SHARED_TEMPLATE = ""  # stands for the shared template in a mapping by agent
SHARED_TEMPLATE_SCOPE = "instance"  # stands for the shared template in the table of approved hashes

_encode = msgspec.json.Encoder().encode
_snapshot_decoder = msgspec.json.Decoder(InstructionSnapshot)


class SectionSize(NamedTuple):
    """The size of one section of a prompt. Template text outside of all sections is listed as `template`."""

    name: str
    chars: int
    tokens: int


_sizes_decoder = msgspec.json.Decoder(tuple[SectionSize, ...])


class SystemPrompt(Struct, frozen=True):
    """A rendered system prompt, and the sizes of its sections."""

    text: str
    section_sizes: tuple[SectionSize, ...]
    template_hash: str = ""  # hash of the owner's template; empty for the built-in one
    file_sizes: tuple[tuple[str, SectionSize], ...] = ()  # previews only: section and size of each file
    section_texts: Mapping[str, str] = field(
        default_factory=dict[str, str]
    )  # previews only: text of each section by its name


class PromptScope(Struct, frozen=True):
    """The agent and session that a prompt is for.

    If there is no session, the prompt is for a conversation that is about to start.
    """

    agent: Agent
    agent_directory: Path
    workspace: Path
    session: Session | None = None

    @property
    def conversation_key(self) -> str:
        """A key for the current conversation. A reset or compaction of the session starts a new conversation."""
        return f"{self.session.context_start_seq}/{self.session.compactions}" if self.session is not None else ""

    @property
    def is_first_conversation(self) -> bool:
        return self.session is None or (self.session.context_start_seq <= 1 and not self.session.compactions)

    def matches(self, snapshot: InstructionSnapshot) -> bool:
        return snapshot.workspace == str(self.workspace) and snapshot.wanted == self.agent.context_files


class _SessionPrompt(Struct):
    """The last prompt of a session, and what it was rendered from."""

    conversation_key: str
    snapshot: InstructionSnapshot
    context: PromptContext | None = None
    template: InstructionTemplate | None = None
    prompt: SystemPrompt | None = None


class PromptPreviews(Protocol):
    """Renders the system prompt that an agent would get in a run now."""

    async def preview(
        self,
        agent: Agent,
        session: Session | None,
        *,
        mode: Mode | None = None,
        files: Mapping[str, str] | None = None,
    ) -> SystemPrompt: ...


class SystemPromptBuilder:
    """Builds and caches the system prompts of sessions."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        data_dir: Path,
        read_file: ReadWithTrust,
        count_tokens: Callable[[str], int],
        owner: str,
        redact: Callable[[str], str] = str,
        sections: Sequence[InstructionSection] = BUILT_IN_SECTIONS,
    ) -> None:
        """`count_tokens` estimates the number of tokens in text. `redact` removes secrets from the content of files."""
        self._store = store
        self._clock = clock
        self._read_file = read_file
        self._count_tokens = count_tokens
        self._redact = redact
        self._sections = tuple(sections)
        self._templates = TemplateLoader(
            data_dir / instruction_templates.TEMPLATES_FOLDER, store, clock, self._sections, owner
        )
        self._sessions: OrderedDict[str, _SessionPrompt] = OrderedDict()
        self._latest_by_agent: dict[
            str, _SessionPrompt
        ] = {}  # by agent: the prompts of its conversations are mostly the same

    async def build(self, scope: PromptScope, context: PromptContext) -> SystemPrompt:
        """Return the system prompt of a run.

        The caller passes `context` without files. The files are added as they were when the
        conversation started.
        """
        assert scope.session is not None
        known = await self._get_session_prompt(scope)
        template = await self._templates.get_template(scope.agent.name)
        situation = _with_files(context, known.snapshot)
        if known.prompt is None or known.context != situation or known.template != template:
            made = await self._render_or_fall_back(scope, known, situation, template)
            if known.prompt is None or known.prompt.text != made.text:
                await self._store_prompt(scope.session, known, made)
            known.context, known.template, known.prompt = situation, template, made
        return known.prompt

    async def preview(
        self, scope: PromptScope, context: PromptContext, *, template: InstructionTemplate | None = None
    ) -> SystemPrompt:
        """Return the prompt that a run would get now, without storing or changing anything.

        `template` is used in place of the agent's own template.
        """
        known = await self._get_session_prompt(scope, remember=False)
        situation = _with_files(context, known.snapshot)
        if template is not None:
            await asyncio.to_thread(template.check, self._sections)
        made = self._render(situation, template or await self._templates.get_template(scope.agent.name))
        within = {
            "files": situation.files,
            "context_files": situation.context_files,
            "memory": (situation.memory.longterm, *situation.memory.days),
        }
        used = {part.name for part in made.section_sizes}
        files = [
            (section, self._measure(RenderedSection(file.name, file.text)))
            for section, some in within.items()
            for file in some
            if section in used and file.text
        ]
        words = {part.name: part.text for part in render_sections(situation, self._sections) if part.name in used}
        return replace(made, file_sizes=tuple(files), section_texts=words)

    def cached_text(self, session: str) -> str | None:
        """Return the last prompt of a session, or None if the prompt is not in the cache."""
        known = self._sessions.get(session)
        return known.prompt.text if known is not None and known.prompt is not None else None

    # --- the files that a conversation started with ---

    async def _get_session_prompt(self, scope: PromptScope, *, remember: bool = True) -> _SessionPrompt:
        session = scope.session
        known_id = session.id if session is not None else ""
        known = self._sessions.get(known_id)
        if known is not None and known.conversation_key == scope.conversation_key and scope.matches(known.snapshot):
            self._sessions.move_to_end(known_id)
            return known
        known = await self._load_session_prompt(scope) or _SessionPrompt(
            scope.conversation_key, await self._read_snapshot(scope)
        )
        if session is not None and remember:
            self._sessions[known_id] = known
            self._sessions.move_to_end(known_id)
            if len(self._sessions) > CACHED_SESSIONS_MAX:
                self._sessions.popitem(last=False)
        return known

    async def _load_session_prompt(self, scope: PromptScope) -> _SessionPrompt | None:
        if scope.session is None:
            return None
        kept = await self._store.read(partial(instructions.get, session=scope.session.id))
        if kept is None or kept.context_key != scope.conversation_key:
            return None
        try:
            snapshot, parts = _snapshot_decoder.decode(kept.snapshot), _sizes_decoder.decode(kept.parts)
        except msgspec.MsgspecError:  # written by another version: read the files again
            return None
        if not scope.matches(snapshot):
            return None
        # It is rendered again: the stored text only shows whether the prompt has changed.
        return _SessionPrompt(
            kept.context_key, self._share_snapshot(scope, snapshot), prompt=SystemPrompt(kept.text, parts)
        )

    async def _read_snapshot(self, scope: PromptScope) -> InstructionSnapshot:
        snapshot = await read_snapshot(
            self._read_file,
            agent_directory=scope.agent_directory,
            workspace=scope.workspace,
            patterns=scope.agent.context_files,
            is_first=scope.is_first_conversation,
            redact=self._redact,
        )
        return self._share_snapshot(scope, snapshot)

    def _share_snapshot(self, scope: PromptScope, snapshot: InstructionSnapshot) -> InstructionSnapshot:
        """Return the cached snapshot if it equals the given one, so that an agent's conversations share one object."""
        lately = self._latest_by_agent.get(scope.agent.name)
        return lately.snapshot if lately is not None and lately.snapshot == snapshot else snapshot

    # --- the text ---

    async def _render_or_fall_back(
        self, scope: PromptScope, known: _SessionPrompt, context: PromptContext, template: InstructionTemplate | None
    ) -> SystemPrompt:
        lately = self._latest_by_agent.get(scope.agent.name)
        if lately is not None and lately.prompt is not None and lately.template == template:
            if lately.context == context:
                return lately.prompt
        try:
            made = self._render(context, template)
        except InvalidTemplate as broken:
            # The template passed its check but fails now: keep the session's last prompt, else use the built-in one.
            await self._templates.report_error(scope.agent.name, broken)
            made = known.prompt or self._render(context, None)
        if len(self._latest_by_agent) >= CACHED_AGENTS_MAX:
            self._latest_by_agent.clear()
        self._latest_by_agent[scope.agent.name] = _SessionPrompt("", known.snapshot, context, template, made)
        return made

    def _render(self, context: PromptContext, template: InstructionTemplate | None) -> SystemPrompt:
        parts = render_sections(context, self._sections)
        if template is None:
            return SystemPrompt(join_sections(parts), tuple(self._measure(part) for part in parts))
        text, used = template.render_with_sections(context, parts)
        counted = [self._measure(part) for part in used]
        beside = max(self._count_tokens(text) - sum(each.tokens for each in counted), 0)
        chars = max(len(text) - sum(each.chars for each in counted), 0)
        return SystemPrompt(text, (*counted, SectionSize("template", chars, beside)), template.hash)

    def _measure(self, part: RenderedSection) -> SectionSize:
        return SectionSize(part.name, len(part.text), self._count_tokens(part.text))

    async def _store_prompt(self, session: Session, known: _SessionPrompt, prompt: SystemPrompt) -> None:
        kept = StoredInstructions(
            context_key=known.conversation_key,
            snapshot=_encode(known.snapshot).decode(),
            text=prompt.text,
            parts=_encode(prompt.section_sizes).decode(),
            at_ms=to_ms(self._clock.now()),
        )
        await self._store.write(partial(instructions.upsert, session=session.id, stored=kept), point="instructions")


def _with_files(context: PromptContext, snapshot: InstructionSnapshot) -> PromptContext:
    return msgspec.structs.replace(
        context, files=snapshot.files, context_files=snapshot.context_files, memory=snapshot.memory
    )


# --- templates: the current and the last valid ones ---


class _LoadedTemplate(NamedTuple):
    fingerprints: FileFingerprints
    template: InstructionTemplate | None


class TemplateLoader:
    """Loads the template of each agent.

    An invalid template is reported once, and the last valid one stays in use.
    """

    def __init__(
        self, folder: Path, store: Store, clock: Clock, sections: Sequence[InstructionSection], owner: str
    ) -> None:
        self._folder = folder
        self._folder_name = str(folder)
        self._store = store
        self._clock = clock
        self._sections = sections
        self._owner = owner
        self._loaded: dict[str, _LoadedTemplate] = {}

    async def get_template(self, agent: str) -> InstructionTemplate | None:
        """Return the template of an agent, or None for the built-in prompt."""
        found = instruction_templates.template_fingerprints(self._folder_name, agent)
        taken = self._loaded.get(agent)
        if taken is not None and taken.fingerprints == found:
            return taken.template
        if not found and taken is None:
            return None
        template = await self._load(agent, found, previous=taken.template if taken is not None else None)
        if len(self._loaded) >= CACHED_AGENTS_MAX:
            self._loaded.clear()
        self._loaded[agent] = _LoadedTemplate(found, template)
        return template

    async def _load(
        self, agent: str, fingerprints: FileFingerprints, *, previous: InstructionTemplate | None
    ) -> InstructionTemplate | None:
        scope = instruction_templates.template_scope_of(fingerprints, self._folder_name, agent)
        try:
            template = await asyncio.to_thread(self._read, agent)
        except InvalidTemplate as broken:
            await self.report_error(agent, broken)
            return previous or await self._load_last_valid(scope)
        if template is not None:
            await self._store.write(
                partial(_store_valid_template, scope=scope, template=template, at_ms=self._now_ms()),
                point="instructions",
            )
        log.info("template loaded", extra={"agent": agent, "hash": template.hash[:16] if template else "none"})
        return template

    def _read(self, agent: str) -> InstructionTemplate | None:
        try:
            template = instruction_templates.load_template(self._folder, agent)
        except OSError as error:
            raise InvalidTemplate(self._folder_name, because=f"it cannot be read: {error}") from error
        if template is not None:
            template.check(self._sections)
        return template

    async def _load_last_valid(self, scope: str) -> InstructionTemplate | None:
        pin = await self._store.read(
            partial(content_approvals.find, kind=APPROVAL_KIND, name=scope or SHARED_TEMPLATE_SCOPE)
        )
        if pin is None:
            return None
        template = InstructionTemplate(msgspec.json.decode(pin.content, type=dict[str, str]))
        try:
            await asyncio.to_thread(template.check, self._sections)
        except InvalidTemplate as broken:  # valid for an older version only
            log.error("stored template invalid", extra={"scope": scope, "because": broken.because})
            return None
        return template

    async def report_error(self, agent: str, error: InvalidTemplate) -> None:
        """Log an invalid template and notify the owner, once for each error."""
        log.error("template invalid", extra={"agent": agent, "error": error.sentence, "because": error.because})
        what = hashlib.sha256(f"{error.sentence}\0{error.because}".encode()).hexdigest()[:32]
        at_ms = self._now_ms()
        notice = Notification(
            id=NotificationId(derive_id(what, "template")),
            person=self._owner,
            sender="server",
            session=None,
            title="Invalid instructions template",
            text=f"{error.sentence}: {error.because}. The last valid template stays in use."[
                :NOTIFICATION_TEXT_LENGTH_MAX
            ],
            trust=Trust.PRIVATE,
            at=from_ms(at_ms),
            read_at=None,
        )
        await self._store.write(partial(_notify, notification=notice, at_ms=at_ms), point="instructions")

    def _now_ms(self) -> int:
        return to_ms(self._clock.now())


def _store_valid_template(conn: sa.Connection, *, scope: str, template: InstructionTemplate, at_ms: int) -> None:
    name = scope or SHARED_TEMPLATE_SCOPE
    pin = content_approvals.find(conn, APPROVAL_KIND, name)
    if pin is None or pin.hash != template.hash:
        content = _encode(dict(template.files)).decode()
        content_approvals.upsert(
            conn, APPROVAL_KIND, name, hash_=template.hash, content=content, decided_by="server", at_ms=at_ms
        )


def _notify(conn: sa.Connection, *, notification: Notification, at_ms: int) -> None:
    if people.find(conn, notification.person) is None:
        return
    tx = Transaction(conn, at_ms)
    notifications.add(tx, notification)
    tx.close()


def find_renamed_template_names(data_dir: Path, agents: Sequence[str]) -> dict[str, list[RenamedName]]:
    """Return the outdated names that the templates on disk use, for `retinue doctor`.

    The result maps each agent to the names in its template. The shared template has the key `SHARED_TEMPLATE`.
    """
    folder = data_dir / instruction_templates.TEMPLATES_FOLDER
    found: dict[str, list[RenamedName]] = {}
    if not folder.is_dir():
        return found
    for agent in ("", *(name for name in agents if os.path.isdir(folder / name))):
        try:
            template = instruction_templates.load_template(folder, agent)
            if template is not None and (names := instruction_templates.find_renamed_names(template)):
                found[agent or SHARED_TEMPLATE] = names
        except (InvalidTemplate, OSError):
            continue  # `find_invalid_templates` reports it
    return found


def find_invalid_templates(
    data_dir: Path, agents: Sequence[str], sections: Sequence[InstructionSection] = BUILT_IN_SECTIONS
) -> dict[str, InvalidTemplate]:
    """Return the error of each invalid template on disk, by agent, for `retinue doctor`.

    The shared template has the key `SHARED_TEMPLATE`.
    """
    folder = data_dir / instruction_templates.TEMPLATES_FOLDER
    found: dict[str, InvalidTemplate] = {}
    if not folder.is_dir():
        return found
    for agent in ("", *(name for name in agents if os.path.isdir(folder / name))):
        try:
            template = instruction_templates.load_template(folder, agent)
            if template is not None:
                template.check(sections)
        except InvalidTemplate as broken:
            found[agent or SHARED_TEMPLATE] = broken
    return found
