"""Builds the built-in tools and the parts that they share."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, structs

from retinue.agents.agent_directory import ensure_agent_directory
from retinue.agents.instructions import Mode, instruction_mode_of
from retinue.agents.skill_commands import build_skill_commands
from retinue.agents.skill_discovery import SKILLS_FOLDER as SKILLS
from retinue.agents.skill_loader import RunSkills
from retinue.agents.skill_loader import SkillLoader as Skills
from retinue.agents.skill_selection import parse_subset, render_each_skill
from retinue.config import Settings
from retinue.config.agent_defaults import TimeFormat
from retinue.config.provenance import ProvenanceSettings
from retinue.config.sandbox import DockerSettings, WorkspaceAccess
from retinue.config.skills import SkillSettings
from retinue.config.tools import ExecSettings
from retinue.config.web import WebSettings
from retinue.connectors.base import Connector
from retinue.domain.agent import Agent
from retinue.domain.agent_message import AgentMessage, AgentMessageReceipt, DeliverAgentMessage
from retinue.domain.approval import Approval
from retinue.domain.delegation_request import DelegateWork, DelegationRequest, DelegationStatus
from retinue.domain.display_options import Elevation
from retinue.domain.envelope import EnvelopeDraft, Receipt
from retinue.domain.errors import Invalid
from retinue.domain.ids import RunId, SessionId
from retinue.domain.permission import Permission
from retinue.domain.ports import Clock, EnvelopeAcceptor, IdSource
from retinue.domain.prompt_breakdown import PromptPart, PromptPartKind
from retinue.domain.protected_paths import ProtectedPaths
from retinue.domain.session import OriginKind, Session
from retinue.domain.slash_command import SkillCommand
from retinue.domain.structs import replace
from retinue.intake.routing import OWNER
from retinue.models.model_selection import ModelSelector
from retinue.operations.catalog import OPERATIONS
from retinue.operations.skill.skills import map_tools_to_bundles
from retinue.plugins.base import SectionContext as PluginScene
from retinue.plugins.lifecycle import PluginLoader
from retinue.policy.access.agent_visibility import SessionVisibility, decide_session_visibility
from retinue.policy.provenance.provenance_rules import ProvenancePolicy, build_policy_with_defaults
from retinue.policy.tools import exec_allowlist
from retinue.policy.tools.exec_allowlist import CommandRule
from retinue.policy.tools.exec_placement import ElevationGates, ExecPolicy
from retinue.policy.tools.sandbox_settings import is_confined, is_main_session, merge_sandbox_settings
from retinue.runners.base import NO_RUN_RESOURCES, RunAssignment, RunResources
from retinue.runners.token_estimate import tokens_of_text
from retinue.sandbox.base import Sandbox
from retinue.sandbox.bubblewrap import BubblewrapSandbox
from retinue.sandbox.host import HostSandbox
from retinue.schedules.gates import GateRunner
from retinue.store.agents import file_trust
from retinue.store.core.connection import Store
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.tools.base import Tool, ToolContext
from retinue.tools.channel_tools import FindConnector, ReactTool, SendFileTool
from retinue.tools.delegate.agent_message_tools import AgentsSwitchTool, SendAgentMessageTool
from retinue.tools.delegate.agent_tools import AgentsListTool, AgentsMessageTool
from retinue.tools.delegate.session_tools import SessionsHistoryTool, SessionsListTool, SessionsSendTool
from retinue.tools.delegate.spawn_tools import SessionsSpawnTool, StartBackgroundAgentTool, SubagentSpawner
from retinue.tools.files import FileServices, build_file_tools
from retinue.tools.grants import GrantCache
from retinue.tools.mcp.server_pool import McpServerPool
from retinue.tools.mcp.server_sandbox import build_server_sandbox
from retinue.tools.message_tool import MessageTool
from retinue.tools.notify import NotifyTool
from retinue.tools.panels import build_panel_tools
from retinue.tools.permissions import GrantPermissionTool, PermissionRequester, RequestPermissionTool
from retinue.tools.questions import AskQuestionsTool
from retinue.tools.result_truncation import FullResultStore
from retinue.tools.session_status import SessionStatusTool
from retinue.tools.shell.exec_tool import ExecRules, ExecTool
from retinue.tools.shell.job_store import JobStore
from retinue.tools.shell.jobs import JobRunner
from retinue.tools.shell.process_tool import ProcessTool
from retinue.tools.shell.sandbox_choice import SandboxChooser, settle_changes
from retinue.tools.ui_windows import WindowRegistry
from retinue.tools.web.browser_tool import BrowserActTool, BrowserPool, BrowserTool
from retinue.tools.web.fetch_tool import WebFetchTool
from retinue.tools.web.search_tool import WebSearchTool

if TYPE_CHECKING:
    from retinue.sandbox.container import ContainerPool

log = logging.getLogger(__name__)

DEFAULT_SKILL_SETTINGS = SkillSettings()


class ToolServices(Struct):
    """Functions of the server that tools call. Those of the intake and the engine are set after the tools are built."""

    redact: Callable[[str], str]
    intake: EnvelopeAcceptor | None = None
    request_approval: PermissionRequester | None = None
    delegate_work: DelegateWork | None = None
    get_catalog: Callable[[], ModelSelector] | None = None
    deliver_agent_message: DeliverAgentMessage | None = None
    get_connector: FindConnector | None = None

    def connector(self, name: str) -> Connector | None:
        return self.get_connector(name) if self.get_connector is not None else None

    async def accept(self, draft: EnvelopeDraft) -> Receipt:
        """Accept an envelope that a tool sends. Secrets in its text are redacted, as in a tool result."""
        assert self.intake is not None  # no tool is called before the server has started
        return await self.intake.accept(structs.replace(draft, text=self.redact(draft.text)))

    async def request_permission(
        self, run: RunId, *, call: str, agent: str, permission: Permission, reason: str
    ) -> Approval:
        assert self.request_approval is not None
        return await self.request_approval(run, call=call, agent=agent, permission=permission, reason=reason)

    def catalog(self) -> ModelSelector:
        assert self.get_catalog is not None
        return self.get_catalog()

    async def delegate(self, request: DelegationRequest) -> DelegationStatus:
        assert self.delegate_work is not None
        return await self.delegate_work(structs.replace(request, text=self.redact(request.text)))

    async def send_agent_message(self, message: AgentMessage) -> AgentMessageReceipt:
        assert self.deliver_agent_message is not None
        return await self.deliver_agent_message(structs.replace(message, text=self.redact(message.text)))


class BuiltInTools:
    """The built-in tools and the parts that they share, such as the sandbox and the browsers."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        *,
        store: Store,
        clock: Clock,
        ids: IdSource,
        files: AttachmentFiles,
        environment: Mapping[str, str],
        redact: Callable[[str], str],
        random: Random,
    ) -> None:
        self._settings = settings
        self._store = store
        self._cached_policy: tuple[ProvenanceSettings, ProvenancePolicy] | None = None
        now = settings()
        home = Path(os.path.realpath(now.home))
        person = Path(os.path.realpath(Path.home()))
        withheld = ProtectedPaths(data_directory=home, user_home=person)
        self.services = ToolServices(redact)
        self.windows = WindowRegistry(clock, ids)
        self.grants = GrantCache(store, clock)
        self.full_results = FullResultStore(files, store)
        self.file_services = file_services = FileServices(
            store=store, clock=clock, files=files, withheld=withheld, redact=redact
        )
        self._jobs = JobRunner(JobStore(store, clock, self.services, home / "processes", redact=redact), clock, ids)
        self._browsers = BrowserPool(
            lambda: settings().web, clock, search_path=environment.get("PATH", os.defpath), is_root=os.getuid() == 0
        )
        hidden, folder = (home, *now.sandbox.hidden), home / "sandbox"
        homes = (home / "agents", home / "mcp")
        self._containers: ContainerPool | None = None

        def container(key: str, docker: DockerSettings | None) -> Sandbox:
            from retinue.sandbox.container import ContainerPool  # imported only if a container engine is configured

            if self._containers is None:
                self._containers = ContainerPool(
                    now.sandbox.docker,
                    folder=folder,
                    clock=clock,
                    private_paths=hidden,
                    shareable_parents=homes,
                    user_home=person,
                )
            return self._containers.for_scope(key, docker)

        self.sandbox_choice = SandboxChooser(
            settings=lambda: settings().sandbox,
            host=HostSandbox(),
            bubblewrap=BubblewrapSandbox(
                folder=folder, private_paths=hidden, shareable_parents=homes, user_home=person
            ),
            container=container,
            agents_directory=home / "agents",
            is_owner=_is_owner,
            environment=environment,
        )
        self.gates = GateRunner(
            store=store,
            clock=clock,
            ids=ids,
            grants=self.grants,
            sandbox_choice=self.sandbox_choice,
            withheld=withheld,
            agent_directory_of=partial(ensure_agent_directory, home),
            redact=redact,
        )
        rules, confined = _exec_rules(self.sandbox_choice, settings), _is_limited_to_spawned(settings)
        self.mcp_servers = McpServerPool(
            lambda: settings().mcp,
            data_directory=home,
            store=store,
            sandbox=build_server_sandbox(self.sandbox_choice),
            clock=clock,
            ids=ids,
            random=random,
            environment=environment,
            files=files,
        )

        def web() -> WebSettings:
            return settings().web

        sending = SubagentSpawner(self.services.delegate, store, self.services.catalog, lambda: settings().defaults)
        self.tools: tuple[Tool, ...] = (
            SessionStatusTool(
                store, clock, str(now.zone), lambda: settings().defaults.time_format is TimeFormat.TWELVE
            ),
            *build_file_tools(file_services),
            ExecTool(
                jobs=self._jobs,
                store=store,
                clock=clock,
                place_command=self.sandbox_choice,
                rules=rules,
                withheld=withheld,
            ),
            ProcessTool(jobs=self._jobs),
            WebFetchTool(web, clock, ids, files=files, redact=redact),
            WebSearchTool(web, clock, ids, environment),
            BrowserTool(self._browsers, ids, files),
            BrowserActTool(self._browsers, ids),
            MessageTool(self.services, file_services, self.services.delegate),
            SendFileTool(self.services, file_services, self.services.connector),
            ReactTool(file_services, self.services.connector),
            RequestPermissionTool(self.services.request_permission, self.grants, store),
            RequestPermissionTool(
                self.services.request_permission, self.grants, store, name="request_permission_via_parent"
            ),
            GrantPermissionTool(store, clock),
            NotifyTool(store, clock, OWNER.name, redact),
            AskQuestionsTool(store, clock, redact, self.services),
            AgentsListTool(store),
            AgentsMessageTool(self.services.delegate, store, clock, lambda: settings().external, confined),
            SessionsSpawnTool(sending),
            StartBackgroundAgentTool(sending),
            SendAgentMessageTool(self.services.send_agent_message, confined),
            AgentsSwitchTool(self.services.send_agent_message),
            SessionsListTool(store, clock, confined),
            SessionsHistoryTool(store, confined),
            SessionsSendTool(self.services.delegate, store, confined),
            *build_panel_tools(self.windows),
        )

    def provenance_policy(self) -> ProvenancePolicy:
        """Return the provenance policy.

        The owner's rules come before the built-in rules. The policy is built again only if the settings have changed.
        """
        own = self._settings().provenance
        if self._cached_policy is None or self._cached_policy[0] is not own:
            self._cached_policy = (own, build_policy_with_defaults(own))
        return self._cached_policy[1]

    async def start(self) -> None:
        """End commands that an earlier server process left running, and notify their sessions.

        This must be called after the intake is built, and before the first run starts.
        """
        await self._jobs.open()
        if doubted := await self._store.scan(file_trust.list_distrusted_changes):
            await settle_changes(self._store, doubted)  # no command is running that could change these files

    async def probe_sandbox(self) -> None:
        """Check whether the sandbox works, and log a warning if not. A tool call may make the same check earlier."""
        probe = await self.sandbox_choice.probe()
        if not probe.works:
            log.warning("sandbox not available", extra={"because": probe.because, "try": probe.try_this})

    async def end_session_work(self, session: SessionId, because: str) -> None:
        await self._jobs.kill_session(session, because)
        await self._browsers.close_session(session)

    async def close(self) -> None:
        await self.mcp_servers.close()
        await self._jobs.close()
        await self._browsers.close()
        if self._containers is not None:
            await self._containers.wait_for_kills()


def _is_owner(context: ToolContext) -> bool:
    return context.sender == OWNER


def _is_limited_to_spawned(settings: Callable[[], Settings]) -> Callable[[ToolContext], bool]:
    """Return a function that returns whether a tool call may see only sessions that its own session has started."""

    def confined(context: ToolContext) -> bool:
        main = context.origin in (OriginKind.TERMINAL, OriginKind.WEB) and _is_owner(context)
        sandbox = merge_sandbox_settings(settings().sandbox, context.agent, *context.parent_agents)
        return decide_session_visibility(context.agent, sandbox, is_main=main) is SessionVisibility.SPAWNED

    return confined


def _exec_gates(context: ToolContext) -> ElevationGates:
    return ElevationGates(
        is_for_owner=_is_owner(context),
        is_foreground=context.origin.is_foreground,
        is_agent_permitted=all(each.elevated is not Elevation.OFF for each in (context.agent, *context.parent_agents)),
        level=context.elevation,
    )


def _exec_rules(sandbox_choice: SandboxChooser, settings: Callable[[], Settings]) -> ExecRules:
    return ExecRules(
        policy=lambda scene: sandbox_choice.adapt_policy(scene, _exec_policy(settings().tools.exec)),
        gates=_exec_gates,
        sandbox_works=sandbox_choice.has_sandbox,
        prepare_sandbox=sandbox_choice.ensure_probed,
        with_settings=lambda other: _exec_rules(replace(sandbox_choice, settings=lambda: other.sandbox), lambda: other),
    )


def _exec_policy(settings: ExecSettings) -> ExecPolicy:
    return ExecPolicy(
        host=settings.host,
        security=settings.security,
        ask=settings.ask,
        sandbox_security=settings.sandbox_security,
        sandbox_ask=settings.sandbox_ask,
        elevated=settings.elevated,
        allow=_command_rules(settings.allow),
    )


@lru_cache(maxsize=8)
def _command_rules(texts: tuple[str, ...]) -> tuple[CommandRule, ...]:
    return tuple(map(exec_allowlist.parse_command_rule, texts))


# --- resources of a run ---


async def load_run_resources(
    skills: Skills, plugins: PluginLoader, settings: Callable[[], Settings], assignment: RunAssignment
) -> RunResources:
    """Return the skills and plugin sections of a run, and the restrictions of its sandbox."""
    agent, home = assignment.agent, assignment.tools_directory  # a subagent has the skills of the agent that started it
    now = settings()
    sandbox = merge_sandbox_settings(now.sandbox, agent, *assignment.delegating_agents)
    if (
        now.skills == DEFAULT_SKILL_SETTINGS
        and not (plugins.registry.sections() or plugins.skill_folders() or assignment.workspace != home)
        and not os.path.exists(f"{home}/{SKILLS}")
        and not os.path.exists(f"{now.home}/{SKILLS}")
        and sandbox.workspace is WorkspaceAccess.WRITE
        and sandbox.browser
    ):
        return NO_RUN_RESOURCES
    kit = await skills.load(
        (assignment.acting_agent or agent).name,
        agent_directory=home,
        workspace=assignment.workspace,
        subset=_session_skills(assignment.session),
        bundle_by_tool=_bundle_by_tool(),
        requested_skill=assignment.request.skill,
    )
    origin = assignment.session.origin.kind
    scene = PluginScene(agent=agent, session=assignment.session.id, agent_directory=home, origin=origin)
    sections = await plugins.render_sections(scene, minimal=instruction_mode_of(agent, origin) is not Mode.FULL)
    confined = is_confined(sandbox, is_main=is_main_session(assignment.session.origin, str(OWNER)))
    # A workspace that is read-only for commands is read-only for the built-in tools too.
    read_only = confined and sandbox.workspace is not WorkspaceAccess.WRITE
    browser = sandbox.browser or not confined
    if kit == RunSkills() and not sections and not read_only and browser:
        return NO_RUN_RESOURCES
    return RunResources(
        skills=kit.section,
        plugins=tuple(sections),
        readable_directories=tuple(kit.selection.folders),
        environment=kit.environment.variables,
        hidden_tools=tuple(sorted(kit.exposed.hidden)),
        is_read_only=read_only,
        has_browser=browser,
    )


async def list_skill_commands(
    skills: Skills, settings: Callable[[], Settings], agent: Agent, session: Session | None
) -> Sequence[SkillCommand]:
    """Return the slash commands of an agent's skills."""
    now = settings()
    home = ensure_agent_directory(now.home, agent.name)
    _, stood = await skills.find_skills(
        agent=agent.name, agent_directory=home, workspace=now.defaults.workspace_of(agent, home)
    )
    return build_skill_commands(stood, subset=_session_skills(session) if session is not None else None)


async def measure_skills(
    skills: Skills, settings: Callable[[], Settings], agent: Agent, session: Session | None
) -> Sequence[PromptPart]:
    """Return the size of the text about each skill in an agent's system prompt."""
    now = settings()
    home = ensure_agent_directory(now.home, agent.name)
    kit = await skills.load(
        agent.name,
        agent_directory=home,
        workspace=now.defaults.workspace_of(agent, home),
        subset=_session_skills(session) if session is not None else None,
        bundle_by_tool=_bundle_by_tool(),
    )
    return [
        PromptPart(
            kind=PromptPartKind.SKILL, name=name, chars=len(words), tokens=tokens_of_text(words), within="skills"
        )
        for name, words in render_each_skill(kit.selection)
    ]


def _session_skills(session: Session) -> tuple[str, ...] | None:
    """Return the skills selected for a session. An invalid value is logged and ignored."""
    core = session.attributes.get("core")
    try:
        return parse_subset(cast("dict[str, Any]", core).get("skills")) if isinstance(core, dict) else None
    except Invalid as error:
        log.warning("invalid skill selection", extra={"session": session.id, "because": error.because})
        return None


@cache
def _bundle_by_tool() -> dict[str, str]:
    return map_tools_to_bundles(OPERATIONS)
