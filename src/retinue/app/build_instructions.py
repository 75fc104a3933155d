"""Collects the data for system prompts from all parts of the server. The package `agents` renders the prompts."""

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
from retinue.agents.agent_directory import ensure_agent_directory, ensure_workspace
from retinue.agents.instruction_builder import PromptScope, SystemPrompt, SystemPromptBuilder
from retinue.agents.instruction_templates import InstructionTemplate
from retinue.agents.instructions import (
    Mode,
    ModelAlias,
    PromptAgent,
    PromptContext,
    PromptInstance,
    PromptPanel,
    PromptRuntime,
    PromptTool,
    PromptWorkspace,
    SubagentTask,
    VisibleAgent,
    instruction_mode_of,
    to_one_line,
)
from retinue.config import Settings
from retinue.domain import address
from retinue.domain.agent import Agent
from retinue.domain.delegation import DelegationKind
from retinue.domain.ids import SessionId
from retinue.domain.model import ModelFacts
from retinue.domain.prompt_breakdown import PromptPart, PromptPartKind
from retinue.domain.session import Origin, OriginKind, QueueOverride, Session, SessionActivity, SessionOptions
from retinue.domain.times import from_ms
from retinue.domain.tool import ToolSpec
from retinue.domain.trust import Trust
from retinue.intake.routing import OWNER
from retinue.policy.access.agent_visibility import list_visible_agents
from retinue.policy.tools.sandbox_settings import is_confined, is_main_session, merge_sandbox_settings
from retinue.policy.tools.tool_policy import ToolPolicyContext
from retinue.runners.base import LoadRunResources, RunAssignment, RunResources
from retinue.store.agents import agents
from retinue.store.core import tables as t
from retinue.store.core.connection import Store
from retinue.store.envelopes import envelopes
from retinue.store.runs import delegating_agents, delegations
from retinue.store.runs.run_requesters import get_requesters_at
from retinue.store.sessions import sessions
from retinue.tools.ui_windows import WindowRegistry

CACHED_TOOL_LISTS_MAX = 64  # cached tool lists
PANELS_MAX = 20
DELEGATIONS_READ_MAX = 50
INTERNAL_TOOL_PREFIX = "system_"  # internal tools, which are not in the prompt

_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,63}")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s")


class RunPrompts:
    """Builds the system prompts of runs, and previews of system prompts."""

    def __init__(
        self,
        prompt_builder: SystemPromptBuilder,
        store: Store,
        *,
        data_dir: Path,
        settings: Callable[[], Settings],
        windows: WindowRegistry,
        zone: str,
        load_resources: LoadRunResources,
        offered_tools: Callable[[Agent, ToolPolicyContext], Sequence[ToolSpec]],
        model_facts: Callable[[Agent, SessionOptions], ModelFacts],
    ) -> None:
        """`model_facts` returns the facts about the model that would be called first."""
        self._data_dir = data_dir
        self._load_resources = load_resources
        self._offered_tools = offered_tools
        self._model_facts = model_facts
        self._prompt_builder = prompt_builder
        self._store = store
        self._settings = settings
        self._windows = windows
        self._zone = zone
        self._agents: Sequence[Agent] | None = None
        self._agent_changes = 0  # changes of agents, counted to detect a change during a read
        self._visible_agents: dict[str, tuple[Agent, Sequence[Agent], tuple[VisibleAgent, ...]]] = {}
        self._tools: dict[int, tuple[Sequence[ToolSpec], tuple[PromptTool, ...]]] = {}
        self._aliases: tuple[object, tuple[ModelAlias, ...]] = (None, ())
        store.on_commit(self._on_agents_changed, t.agents)

    async def build(
        self, assignment: RunAssignment, resources: RunResources, facts: ModelFacts, tools: Sequence[ToolSpec]
    ) -> str:
        """Return the system prompt of a run. `facts` describes the model that the run uses."""
        at = await self._build_context(assignment, resources, facts, tools)
        place = assignment.instructions_directory or assignment.workspace
        whose = PromptScope(assignment.agent, assignment.agent_directory, place, session=assignment.session)
        return (await self._prompt_builder.build(whose, at)).text

    async def preview(
        self,
        agent: Agent,
        session: Session | None,
        *,
        mode: Mode | None = None,
        files: Mapping[str, str] | None = None,
    ) -> SystemPrompt:
        """Return the system prompt that a run of this agent would have now, in this session or in a new session.

        Nothing is stored or changed. `files` is a template to use instead of the agent's.
        """
        if session is not None and session.origin.kind is OriginKind.BACKGROUND:
            return SystemPrompt("", ())  # a background job has no system prompt, only its envelope
        home = await asyncio.to_thread(ensure_agent_directory, self._data_dir, agent.name)
        place = self._settings().defaults.workspace_of(agent, home)
        assignment = RunAssignment(
            agent=agent,
            session=session or _new_session(agent),
            agent_directory=home,
            workspace_directory=await asyncio.to_thread(ensure_workspace, place, agent_directory=home),
        )
        equipment = await self._load_resources(assignment)
        facts = self._model_facts(agent, assignment.session.options)
        origin = assignment.session.origin
        sent = origin.kind is OriginKind.SUBAGENT
        sent_by = (
            await self._store.read(partial(delegating_agents.list_for_session, session=assignment.session))
            if sent
            else ()
        )
        sender = address.person_address(_person_of(origin)) if _person_of(origin) else None
        asked_by = await self._store.read(partial(get_requesters_at, addresses=(sender,))) if sender is not None else ()
        where = ToolPolicyContext(
            provider=facts.ref.provider,
            model=facts.ref.model,
            origin=origin.kind,
            sender=sender,
            requesters=asked_by,
            parent_agents=sent_by,
            channel=origin.channel,
            hidden_tools=equipment.hidden_tools,
            is_read_only=equipment.is_read_only,
            has_browser=equipment.has_browser,
        )
        tools = self._offered_tools(agent, where) if facts.tools else ()
        at = await self._build_context(assignment, equipment, facts, tools, mode=mode)
        whose = PromptScope(agent, home, assignment.workspace, session=session)
        return await self._prompt_builder.preview(
            whose, at, template=InstructionTemplate(files) if files is not None else None
        )

    async def list_parts(self, agent: Agent, session: Session | None) -> Sequence[PromptPart]:
        """Return the sections and files of the system prompt, each with its size."""
        made = await self.preview(agent, session)
        sections = [
            PromptPart(kind=PromptPartKind.SECTION, name=n, chars=chars, tokens=t) for n, chars, t in made.section_sizes
        ]
        files = [
            PromptPart(kind=PromptPartKind.FILE, name=each.name, chars=each.chars, tokens=each.tokens, within=section)
            for section, each in made.file_sizes
        ]
        return [*sections, *files]

    async def _build_context(
        self,
        assignment: RunAssignment,
        resources: RunResources,
        facts: ModelFacts,
        tools: Sequence[ToolSpec],
        *,
        mode: Mode | None = None,
    ) -> PromptContext:
        agent, session, settings = assignment.agent, assignment.session, self._settings()
        offered = self._prompt_tools(tools)
        sent = session.origin.kind is OriginKind.SUBAGENT
        return PromptContext(
            mode=mode or instruction_mode_of(agent, session.origin.kind),
            agent=PromptAgent(
                name=agent.name,
                display_name=agent.display_name,
                description=agent.description,
                instructions=agent.instructions,
                level=agent.permission_level.value,
            ),
            instance=_prompt_instance(OWNER.name, self._zone),
            subagent_task=await self._store.read(partial(_read_subagent_task, session=session)) if sent else None,
            workspace=PromptWorkspace(
                path=str(assignment.workspace),
                agent_directory=str(assignment.tools_directory),
                read_only=resources.is_read_only,
                sandbox=_sandbox_name(settings, assignment),
            ),
            runtime=_prompt_runtime(settings, assignment, facts),
            tools=offered,
            skills=resources.skills,
            aliases=self._prompt_aliases(settings),
            agents=await self._prompt_agents(agent),
            panels=self._prompt_panels(session.origin, offered),
            plugins=resources.plugins,
            extra=assignment.request.extra_system_prompt,
        )

    # --- cached, because it is the same for most runs ---

    def _prompt_tools(self, tools: Sequence[ToolSpec]) -> tuple[PromptTool, ...]:
        known = self._tools.get(id(tools))
        if known is None or known[0] is not tools:
            if len(self._tools) >= CACHED_TOOL_LISTS_MAX:
                self._tools.clear()
            shown = tuple(
                PromptTool(spec.name, to_one_line(_SENTENCE_END.split(spec.description, 1)[0]))
                for spec in tools
                if not spec.name.startswith(INTERNAL_TOOL_PREFIX)
            )
            known = self._tools[id(tools)] = (tools, shown)
        return known[1]

    def _prompt_aliases(self, settings: Settings) -> tuple[ModelAlias, ...]:
        entries = settings.models.entries
        if self._aliases[0] is not entries:
            aliases = (ModelAlias(entry.alias, name) for name, entry in entries.items() if entry.alias)
            self._aliases = (entries, tuple(sorted(aliases, key=lambda alias: alias.name)))
        return self._aliases[1]

    async def _prompt_agents(self, agent: Agent) -> tuple[VisibleAgent, ...]:
        staff = self._agents
        if staff is None:
            changes = self._agent_changes
            staff = await self._store.read(agents.list_all)
            if changes == self._agent_changes:  # no agent changed during the read
                self._agents = staff
        known = self._visible_agents.get(agent.name)
        if known is None or known[0] is not agent or known[1] is not staff:
            seen = tuple(
                VisibleAgent(other.name, other.label, to_one_line(other.description))
                for other in list_visible_agents(agent, staff)
            )
            known = self._visible_agents[agent.name] = (agent, staff, seen)
        return known[2]

    def _on_agents_changed(self) -> None:
        self._agent_changes += 1
        self._agents = None
        self._visible_agents.clear()

    def _prompt_panels(self, origin: Origin, tools: Sequence[PromptTool]) -> tuple[PromptPanel, ...]:
        """Return the panels of the browser window that was used last. Empty if the run has no tool for panels."""
        person = _person_of(origin)
        windows = self._windows.list_windows(person) if person else ()
        if not windows or not any(tool.name == "panels_list" for tool in tools):
            return ()
        shown = windows[0].inventory.panels[:PANELS_MAX]
        return tuple(
            PromptPanel(
                id=panel.id,
                type=panel.type,
                item_type=_id_or_empty(panel.context.get("type")),
                item_id=_id_or_empty(panel.context.get("id")),
            )
            for panel in shown
        )


def _new_session(agent: Agent) -> Session:
    """Return a new session of the owner that is not stored. It is used for a preview without a session."""
    return Session(
        id=SessionId(""),
        agent=agent.name,
        origin=Origin(OriginKind.TERMINAL, str(OWNER)),
        name="",
        activity=SessionActivity.SLEEPING,
        queue=QueueOverride(),
        epoch=0,
        record_seq=0,
        context_start_seq=1,
        revision=0,
        created_at=from_ms(0),
        updated_at=from_ms(0),
        snippet="",
    )


def _read_subagent_task(conn: sa.Connection, session: Session) -> SubagentTask:
    """Return the task of a subagent and the sender of the task.

    A task with untrusted content is left out, because in the system prompt it would have the authority of an
    instruction. The subagent then reads the task in its envelope, which is marked as untrusted.
    """
    parent = session.origin.parent
    asked = sessions.get(conn, parent) if parent is not None else None
    made = delegations.list_into_session(conn, session.id, limit=DELEGATIONS_READ_MAX)
    sent = next((each for each in reversed(made) if each.kind is DelegationKind.SPAWN), None)
    envelope = envelopes.get(conn, sent.id) if sent is not None else None
    task = label = ""
    if sent is not None and envelope is not None and envelope.trust is not Trust.UNTRUSTED:
        task, label = sent.task, sent.label
    return SubagentTask(
        task=task,
        label=label,
        requester=sent.agent if sent is not None else asked.agent if asked is not None else "",
        requester_session=parent or "",
        requester_channel=_channel_name(asked.origin) if asked is not None else "",
        session=session.id,
    )


@cache
def _prompt_instance(owner: str, zone: str) -> PromptInstance:
    source = Path(__file__).parents[3]
    docs = source / "docs" if (source / "pyproject.toml").is_file() else None
    return PromptInstance(version=__version__, owner=owner, zone=zone, documentation=str(docs) if docs else "")


@cache
def _machine_facts() -> tuple[str, str, str, str]:
    return platform.node(), platform.system(), platform.machine(), f"python {platform.python_version()}"


def _prompt_runtime(settings: Settings, assignment: RunAssignment, facts: ModelFacts) -> PromptRuntime:
    agent, session = assignment.agent, assignment.session
    reasoning = assignment.display.with_defaults(session.options.manner).reasoning
    host, system, arch, interpreter = _machine_facts()
    return PromptRuntime(
        host=host,
        os=system,
        arch=arch,
        interpreter=interpreter,
        model=str(facts.ref),
        channel=_channel_name(session.origin),
        capabilities=("images",) if facts.vision else (),
        effort=session.options.effort or settings.defaults.effort_of(agent) or "",
        reasoning=reasoning or "off",
        needs_reasoning_tags=facts.efforts == (),
    )


def _channel_name(origin: Origin) -> str:
    return origin.channel.partition(":")[0] or origin.kind.value


def _sandbox_name(settings: Settings, assignment: RunAssignment) -> str:
    sandbox = merge_sandbox_settings(settings.sandbox, assignment.agent, *assignment.delegating_agents)
    confined = is_confined(sandbox, is_main=is_main_session(assignment.session.origin, str(OWNER)))
    return sandbox.kind.value if confined else ""


def _person_of(origin: Origin) -> str:
    """Return the person that a session belongs to, or an empty string."""
    whose = origin.key.partition("/")[0]
    return whose.partition(":")[2] if whose.startswith("person:") and origin.belongs_to(whose) else ""


def _id_or_empty(value: Any) -> str:
    """Return a value of a panel if it has the form of an id. Otherwise return "", because it may be untrusted text."""
    return value if isinstance(value, str) and _ID_PATTERN.fullmatch(value) else ""
