"""Gathers the context of a run's system prompt from the whole server. `agents` renders it."""

from __future__ import annotations

import asyncio
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from retinue import __version__
from retinue.agents.agent_directory import ensure_home, ensure_workspace
from retinue.agents.instruction_builder import Briefing, Told, Whose
from retinue.agents.instruction_templates import Template
from retinue.agents.instructions import (
    Alias,
    Colleague,
    Errand,
    Mode,
    PanelTold,
    Runtime,
    Situation,
    TheAgent,
    TheHouse,
    ToolTold,
    Where,
    mode_of,
    one_line,
)
from retinue.config import Settings
from retinue.domain import address
from retinue.domain.agent import Agent
from retinue.domain.delegation import DelegationKind
from retinue.domain.ids import SessionId
from retinue.domain.model import ModelFacts
from retinue.domain.prompt_breakdown import Part, PartKind
from retinue.domain.session import Mind, Origin, OriginKind, QueueOverride, Session, Wakefulness
from retinue.domain.times import from_ms
from retinue.domain.tool import ToolSpec
from retinue.domain.trust import Trust
from retinue.intake.routing import OWNER
from retinue.policy.access.agent_visibility import visible_to
from retinue.policy.tools.sandbox_settings import is_confined, is_main, sandbox_of
from retinue.policy.tools.tools import Circumstances
from retinue.runners.base import Assignment, Equip, Equipment
from retinue.store.agents import agents
from retinue.store.core import tables as t
from retinue.store.core.connection import Store
from retinue.store.envelopes import envelopes
from retinue.store.runs import delegating_agents, delegations
from retinue.store.runs.run_requesters import requesters_at
from retinue.store.sessions import sessions
from retinue.tools.ui_windows import Windows

LISTS_MAX = 64  # cached tool lists
PANELS_MAX = 20
DELEGATIONS_LOOKED_AT_MAX = 50
OUR_OWN = "system_"  # internal tools, which are not in the prompt

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,63}")
_SENTENCE = re.compile(r"(?<=[.!?])\s")


class Instructing:
    """Builds and previews system prompts."""

    def __init__(
        self,
        briefing: Briefing,
        store: Store,
        *,
        house: Path,
        settings: Callable[[], Settings],
        windows: Windows,
        zone: str,
        equip: Equip,
        offered: Callable[[Agent, Circumstances], Sequence[ToolSpec]],
        facts: Callable[[Agent, Mind], ModelFacts],
    ) -> None:
        """`model_facts` returns the facts of the model that would be called first."""
        self._house = house
        self._equip = equip
        self._offered = offered
        self._facts = facts
        self._briefing = briefing
        self._store = store
        self._settings = settings
        self._windows = windows
        self._zone = zone
        self._staff: Sequence[Agent] | None = None
        self._changes = 0  # of agents, counted to detect a change during a read
        self._colleagues: dict[str, tuple[Agent, Sequence[Agent], tuple[Colleague, ...]]] = {}
        self._tools: dict[int, tuple[Sequence[ToolSpec], tuple[ToolTold, ...]]] = {}
        self._aliases: tuple[object, tuple[Alias, ...]] = (None, ())
        store.on_commit(self._staff_changed, t.agents)

    async def tell(
        self, assignment: Assignment, equipment: Equipment, facts: ModelFacts, tools: Sequence[ToolSpec]
    ) -> str:
        """Return the system prompt of a run for this model."""
        at = await self._situation(assignment, equipment, facts, tools)
        place = assignment.told_from or assignment.workspace
        whose = Whose(assignment.agent, assignment.home, place, session=assignment.session)
        return (await self._briefing.brief(whose, at)).text

    async def shown(
        self,
        agent: Agent,
        session: Session | None,
        *,
        mode: Mode | None = None,
        files: Mapping[str, str] | None = None,
    ) -> Told:
        """Return the system prompt that a run of this agent would get now, in this session or in a new one.

        It changes nothing. `files` are those of a template that is tried in place of the agent's
        own.
        """
        if session is not None and session.origin.kind is OriginKind.BACKGROUND:
            return Told("", ())  # a background job has no system prompt, only its envelope
        home = await asyncio.to_thread(ensure_home, self._house, agent.name)
        place = self._settings().defaults.workspace_of(agent, home)
        assignment = Assignment(
            agent=agent,
            session=session or _to_begin(agent),
            home=home,
            place=await asyncio.to_thread(ensure_workspace, place, home=home),
        )
        equipment = await self._equip(assignment)
        facts = self._facts(agent, assignment.session.mind)
        origin = assignment.session.origin
        sent = origin.kind is OriginKind.SUBAGENT
        sent_by = (
            await self._store.read(partial(delegating_agents.in_session, session=assignment.session)) if sent else ()
        )
        sender = address.person(_person(origin)) if _person(origin) else None
        asked_by = await self._store.read(partial(requesters_at, addresses=(sender,))) if sender is not None else ()
        where = Circumstances(
            provider=facts.ref.provider,
            model=facts.ref.model,
            origin=origin.kind,
            sender=sender,
            requesters=asked_by,
            senders=sent_by,
            channel=origin.channel,
            hidden=equipment.hidden,
            read_only=equipment.read_only,
            browser=equipment.browser,
        )
        tools = self._offered(agent, where) if facts.tools else ()
        at = await self._situation(assignment, equipment, facts, tools, mode=mode)
        whose = Whose(agent, home, assignment.workspace, session=session)
        return await self._briefing.preview(whose, at, template=Template(files) if files is not None else None)

    async def parts(self, agent: Agent, session: Session | None) -> Sequence[Part]:
        """Return the sections and files of the prompt with their sizes."""
        made = await self.shown(agent, session)
        sections = [Part(kind=PartKind.SECTION, name=n, chars=chars, tokens=t) for n, chars, t in made.parts]
        files = [
            Part(kind=PartKind.FILE, name=each.name, chars=each.chars, tokens=each.tokens, within=section)
            for section, each in made.files
        ]
        return [*sections, *files]

    async def _situation(
        self,
        assignment: Assignment,
        equipment: Equipment,
        facts: ModelFacts,
        tools: Sequence[ToolSpec],
        *,
        mode: Mode | None = None,
    ) -> Situation:
        agent, session, settings = assignment.agent, assignment.session, self._settings()
        offered = self._told_tools(tools)
        sent = session.origin.kind is OriginKind.SUBAGENT
        return Situation(
            mode=mode or mode_of(agent, session.origin.kind),
            agent=TheAgent(
                name=agent.name,
                called=agent.display_name,
                description=agent.description,
                instructions=agent.instructions,
                level=agent.permission_level.value,
            ),
            house=_house(OWNER.name, self._zone),
            errand=await self._store.read(partial(_errand, session=session)) if sent else None,
            where=Where(
                workspace=str(assignment.workspace),
                home=str(assignment.reach),
                read_only=equipment.read_only,
                sandbox=_sandbox(settings, assignment),
            ),
            runtime=_runtime(settings, assignment, facts),
            tools=offered,
            skills=equipment.skills,
            aliases=self._told_aliases(settings),
            agents=await self._told_agents(agent),
            panels=self._told_panels(session.origin, offered),
            plugins=equipment.plugins,
            extra=assignment.request.extra_system_prompt,
        )

    # --- cached, because it is the same for most runs ---

    def _told_tools(self, tools: Sequence[ToolSpec]) -> tuple[ToolTold, ...]:
        known = self._tools.get(id(tools))
        if known is None or known[0] is not tools:
            if len(self._tools) >= LISTS_MAX:
                self._tools.clear()
            told = tuple(
                ToolTold(spec.name, one_line(_SENTENCE.split(spec.description, 1)[0]))
                for spec in tools
                if not spec.name.startswith(OUR_OWN)
            )
            known = self._tools[id(tools)] = (tools, told)
        return known[1]

    def _told_aliases(self, settings: Settings) -> tuple[Alias, ...]:
        entries = settings.models.entries
        if self._aliases[0] is not entries:
            told = (Alias(entry.alias, name) for name, entry in entries.items() if entry.alias)
            self._aliases = (entries, tuple(sorted(told, key=lambda alias: alias.name)))
        return self._aliases[1]

    async def _told_agents(self, agent: Agent) -> tuple[Colleague, ...]:
        staff = self._staff
        if staff is None:
            changes = self._changes
            staff = await self._store.read(agents.everyone)
            if changes == self._changes:  # no agent changed during the read
                self._staff = staff
        known = self._colleagues.get(agent.name)
        if known is None or known[0] is not agent or known[1] is not staff:
            seen = tuple(
                Colleague(other.name, other.called, one_line(other.description)) for other in visible_to(agent, staff)
            )
            known = self._colleagues[agent.name] = (agent, staff, seen)
        return known[2]

    def _staff_changed(self) -> None:
        self._changes += 1
        self._staff = None
        self._colleagues.clear()

    def _told_panels(self, origin: Origin, tools: Sequence[ToolTold]) -> tuple[PanelTold, ...]:
        """Return the panels of the last used window, if the run has a tool for them."""
        person = _person(origin)
        windows = self._windows.of(person) if person else ()
        if not windows or not any(tool.name == "panels_list" for tool in tools):
            return ()
        shown = windows[0].inventory.panels[:PANELS_MAX]
        return tuple(
            PanelTold(
                id=panel.id,
                type=panel.type,
                item_type=_name(panel.context.get("type")),
                item_id=_name(panel.context.get("id")),
            )
            for panel in shown
        )


def _to_begin(agent: Agent) -> Session:
    """Return a session that the owner is about to start."""
    return Session(
        id=SessionId(""),
        agent=agent.name,
        origin=Origin(OriginKind.TERMINAL, str(OWNER)),
        name="",
        wakefulness=Wakefulness.SLEEPING,
        queue=QueueOverride(),
        epoch=0,
        record_seq=0,
        context_from=1,
        revision=0,
        created_at=from_ms(0),
        updated_at=from_ms(0),
        snippet="",
    )


def _errand(conn: sa.Connection, session: Session) -> Errand:
    """Return the task of a subagent, and where it came from.

    A task with untrusted content stays in its envelope, which is marked as untrusted. In the system
    prompt it would have the authority of an instruction.
    """
    parent = session.origin.parent
    asked = sessions.get(conn, parent) if parent is not None else None
    made = delegations.into(conn, session.id, limit=DELEGATIONS_LOOKED_AT_MAX)
    sent = next((each for each in reversed(made) if each.kind is DelegationKind.SPAWN), None)
    letter = envelopes.get(conn, sent.id) if sent is not None else None
    task = label = ""
    if sent is not None and letter is not None and letter.trust is not Trust.UNTRUSTED:
        task, label = sent.task, sent.label
    return Errand(
        task=task,
        label=label,
        requester=sent.agent if sent is not None else asked.agent if asked is not None else "",
        requester_session=parent or "",
        requester_channel=_channel(asked.origin) if asked is not None else "",
        session=session.id,
    )


@cache
def _house(owner: str, zone: str) -> TheHouse:
    source = Path(__file__).parents[3]
    docs = source / "docs" if (source / "pyproject.toml").is_file() else None
    return TheHouse(version=__version__, owner=owner, zone=zone, documentation=str(docs) if docs else "")


@cache
def _machine() -> tuple[str, str, str, str]:
    return platform.node(), platform.system(), platform.machine(), f"python {platform.python_version()}"


def _runtime(settings: Settings, assignment: Assignment, facts: ModelFacts) -> Runtime:
    agent, session = assignment.agent, assignment.session
    reasoning = assignment.manner.over(session.mind.manner).reasoning
    host, system, arch, interpreter = _machine()
    return Runtime(
        host=host,
        os=system,
        arch=arch,
        interpreter=interpreter,
        model=str(facts.ref),
        channel=_channel(session.origin),
        capabilities=("images",) if facts.vision else (),
        thinking=session.mind.effort or settings.defaults.effort_of(agent) or "",
        reasoning=reasoning or "off",
        tags=facts.efforts == (),
    )


def _channel(origin: Origin) -> str:
    return origin.channel.partition(":")[0] or origin.kind.value


def _sandbox(settings: Settings, assignment: Assignment) -> str:
    sandbox = sandbox_of(settings.sandbox, assignment.agent, *assignment.senders)
    confined = is_confined(sandbox, main=is_main(assignment.session.origin, str(OWNER)))
    return sandbox.kind.value if confined else ""


def _person(origin: Origin) -> str:
    """Return the person of a session that belongs to one; an empty string otherwise."""
    whose = origin.key.partition("/")[0]
    return whose.partition(":")[2] if whose.startswith("person:") and origin.belongs_to(whose) else ""


def _name(value: Any) -> str:
    """Return a panel's value if it looks like an id. Any other text could come from an untrusted source."""
    return value if isinstance(value, str) and _NAME.fullmatch(value) else ""
