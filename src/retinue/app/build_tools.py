"""Builds every built-in tool, and the parts that they need."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, structs

from retinue.agents.agent_directory import ensure_home
from retinue.agents.instructions import Mode, mode_of
from retinue.agents.skill_commands import skill_commands
from retinue.agents.skill_discovery import FOLDER as SKILLS
from retinue.agents.skill_loader import Kit
from retinue.agents.skill_loader import Shelf as Skills
from retinue.agents.skill_selection import parse_subset, told_of_each
from retinue.config import Settings
from retinue.config.agent_defaults import TimeFormat
from retinue.config.provenance import OriginSettings
from retinue.config.sandbox import DockerSettings, WorkspaceAccess
from retinue.config.skills import SkillSettings
from retinue.config.tools import ExecSettings
from retinue.config.web import WebSettings
from retinue.connectors.base import Connector
from retinue.domain.agent import Agent
from retinue.domain.agent_message import Heard, PassOn, Word
from retinue.domain.approval import Approval
from retinue.domain.delegation_request import Handed, Handing, HandOver
from retinue.domain.display_options import Elevation
from retinue.domain.envelope import Draft, Receipt
from retinue.domain.errors import Invalid
from retinue.domain.ids import RunId, SessionId
from retinue.domain.permission import Permission, Withheld
from retinue.domain.ports import Clock, Ids, Post
from retinue.domain.prompt_breakdown import Part, PartKind
from retinue.domain.session import OriginKind, Session
from retinue.domain.slash_command import SkillCommand
from retinue.domain.structs import replace
from retinue.intake.routing import OWNER
from retinue.models.model_selection import Catalog
from retinue.operations.catalog import OPERATIONS
from retinue.operations.skill.skills import bundles_by_tool
from retinue.plugins.base import Scene as PluginScene
from retinue.plugins.lifecycle import Plugins
from retinue.policy.access.agent_visibility import Sight, sessions_seen
from retinue.policy.provenance.provenance_rules import OriginPolicy, house_policy
from retinue.policy.tools import exec_allowlist
from retinue.policy.tools.exec_allowlist import Rule
from retinue.policy.tools.exec_placement import ExecPolicy
from retinue.policy.tools.exec_placement import Gates as Doors
from retinue.policy.tools.sandbox_settings import is_confined, is_main, sandbox_of
from retinue.runners.base import NO_EQUIPMENT, Assignment, Equipment
from retinue.runners.token_estimate import tokens_of_text
from retinue.sandbox.base import Sandbox
from retinue.sandbox.bubblewrap import Bubblewrap
from retinue.sandbox.host import Host
from retinue.schedules.gates import Gates
from retinue.store.agents import file_trust
from retinue.store.core.connection import Store
from retinue.store.envelopes.attachment_files import Files
from retinue.tools.base import Scene, Tool
from retinue.tools.channel_tools import React, Rooms, SendFile
from retinue.tools.delegate.agent_message_tools import AgentsSwitch, SendAgentMessage
from retinue.tools.delegate.agent_tools import AgentsList, AgentsMessage
from retinue.tools.delegate.session_tools import SessionsHistory, SessionsList, SessionsSend
from retinue.tools.delegate.spawn_tools import Sending, SessionsSpawn, StartBackgroundAgent
from retinue.tools.files import Ground, file_tools
from retinue.tools.grants import Grants
from retinue.tools.mcp.server_pool import Servers
from retinue.tools.mcp.server_sandbox import placed_by
from retinue.tools.message_tool import Message
from retinue.tools.notify import Notify
from retinue.tools.panels import screen_tools
from retinue.tools.permissions import Asks, GrantPermission, RequestPermission
from retinue.tools.questions import AskQuestions
from retinue.tools.result_truncation import Wholes
from retinue.tools.session_status import SessionStatus
from retinue.tools.shell.exec_tool import Exec, Rules
from retinue.tools.shell.job_store import Book
from retinue.tools.shell.jobs import Jobs
from retinue.tools.shell.process_tool import Process
from retinue.tools.shell.sandbox_choice import Confining, settle
from retinue.tools.ui_windows import Windows
from retinue.tools.web.browser_tool import Browser, BrowserAct, Browsers
from retinue.tools.web.fetch_tool import WebFetch
from retinue.tools.web.search_tool import WebSearch

if TYPE_CHECKING:
    from retinue.sandbox.container import Containers

log = logging.getLogger(__name__)

NO_SKILLS = SkillSettings()


class Ways(Struct):
    """Functions that tools call. The engine and the intake set them later, because tools are built first."""

    mask: Callable[[str], str]
    inbox: Post | None = None
    asks: Asks | None = None
    hands: HandOver | None = None
    models: Callable[[], Catalog] | None = None
    words: PassOn | None = None
    rooms: Rooms | None = None

    def connector(self, instance: str) -> Connector | None:
        return self.rooms(instance) if self.rooms is not None else None

    async def post(self, draft: Draft) -> Receipt:
        """Accept an envelope from a tool. Its text is redacted like a tool result."""
        assert self.inbox is not None  # no tool is called before the server has started
        return await self.inbox.post(structs.replace(draft, text=self.mask(draft.text)))

    async def ask(self, run: RunId, *, call: str, agent: str, permission: Permission, reason: str) -> Approval:
        assert self.asks is not None
        return await self.asks(run, call=call, agent=agent, permission=permission, reason=reason)

    def catalog(self) -> Catalog:
        assert self.models is not None
        return self.models()

    async def hand_over(self, handing: Handing) -> Handed:
        assert self.hands is not None
        return await self.hands(structs.replace(handing, text=self.mask(handing.text)))

    async def pass_on(self, word: Word) -> Heard:
        assert self.words is not None
        return await self.words(structs.replace(word, text=self.mask(word.text)))


class Hands:
    """The built-in tools, and the parts that they share."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        *,
        store: Store,
        clock: Clock,
        ids: Ids,
        files: Files,
        environment: Mapping[str, str],
        mask: Callable[[str], str],
        chance: Random,
    ) -> None:
        self._settings = settings
        self._store = store
        self._read: tuple[OriginSettings, OriginPolicy] | None = None
        now = settings()
        home = Path(os.path.realpath(now.home))
        person = Path(os.path.realpath(Path.home()))
        withheld = Withheld(house=home, person=person)
        self.ways = Ways(mask)
        self.windows = Windows(clock, ids)
        self.grants = Grants(store, clock)
        self.wholes = Wholes(files, store)
        self.ground = ground = Ground(store=store, clock=clock, files=files, withheld=withheld, mask=mask)
        self._jobs = Jobs(Book(store, clock, self.ways, home / "processes", mask=mask), clock, ids)
        self._browsers = Browsers(
            lambda: settings().web, clock, search=environment.get("PATH", os.defpath), root=os.getuid() == 0
        )
        hidden, folder = (home, *now.sandbox.hidden), home / "sandbox"
        homes = (home / "agents", home / "mcp")
        self._containers: Containers | None = None

        def container(key: str, docker: DockerSettings | None) -> Sandbox:
            from retinue.sandbox.container import Containers  # imported only if a container engine is configured

            if self._containers is None:
                self._containers = Containers(
                    now.sandbox.docker, folder=folder, clock=clock, state=hidden, homes=homes, user_home=person
                )
            return self._containers.for_scope(key, docker)

        self.confining = Confining(
            settings=lambda: settings().sandbox,
            host=Host(),
            bubblewrap=Bubblewrap(folder=folder, state=hidden, homes=homes, user_home=person),
            container=container,
            homes=home / "agents",
            is_owner=_is_owner,
            environment=environment,
        )
        self.gates = Gates(
            store=store,
            clock=clock,
            ids=ids,
            grants=self.grants,
            confining=self.confining,
            withheld=withheld,
            home_of=partial(ensure_home, home),
            mask=mask,
        )
        rules, confined = _rules(self.confining, settings), _only_spawned(settings)
        self.servers = Servers(
            lambda: settings().mcp,
            home=home,
            store=store,
            sandbox=placed_by(self.confining),
            clock=clock,
            ids=ids,
            chance=chance,
            environment=environment,
            files=files,
        )

        def web() -> WebSettings:
            return settings().web

        sending = Sending(self.ways.hand_over, store, self.ways.catalog, lambda: settings().defaults)
        self.tools: tuple[Tool, ...] = (
            SessionStatus(store, clock, str(now.zone), lambda: settings().defaults.time_format is TimeFormat.TWELVE),
            *file_tools(ground),
            Exec(jobs=self._jobs, store=store, clock=clock, confine=self.confining, rules=rules, withheld=withheld),
            Process(jobs=self._jobs),
            WebFetch(web, clock, ids, files=files, mask=mask),
            WebSearch(web, clock, ids, environment),
            Browser(self._browsers, ids, files),
            BrowserAct(self._browsers, ids),
            Message(self.ways, ground, self.ways.hand_over),
            SendFile(self.ways, ground, self.ways.connector),
            React(ground, self.ways.connector),
            RequestPermission(self.ways.ask, self.grants, store),
            RequestPermission(self.ways.ask, self.grants, store, name="request_permission_via_parent"),
            GrantPermission(store, clock),
            Notify(store, clock, OWNER.name, mask),
            AskQuestions(store, clock, mask, self.ways),
            AgentsList(store),
            AgentsMessage(self.ways.hand_over, store, clock, lambda: settings().external, confined),
            SessionsSpawn(sending),
            StartBackgroundAgent(sending),
            SendAgentMessage(self.ways.pass_on, confined),
            AgentsSwitch(self.ways.pass_on),
            SessionsList(store, clock, confined),
            SessionsHistory(store, confined),
            SessionsSend(self.ways.hand_over, store, confined),
            *screen_tools(self.windows),
        )

    def origin(self) -> OriginPolicy:
        """Return the provenance policy: the owner's rules before the built-in ones. Cached by settings object."""
        own = self._settings().origin
        if self._read is None or self._read[0] is not own:
            self._read = (own, house_policy(own))
        return self._read[1]

    async def open(self) -> None:
        """End commands that an earlier process left running, and report them.

        Called once the intake exists and before any lane runs.
        """
        await self._jobs.open()
        if doubted := await self._store.scan(file_trust.doubted):
            await settle(self._store, doubted)  # no running command can change these files any more

    async def look_around(self) -> None:
        """Probe the sandbox in the background. A call that needs it earlier probes it itself."""
        probe = await self.confining.probe()
        if not probe.works:
            log.warning("no sandbox", extra={"because": probe.because, "try": probe.try_this})

    async def session_ended(self, session: SessionId, because: str) -> None:
        await self._jobs.end_session(session, because)
        await self._browsers.close_session(session)

    async def close(self) -> None:
        await self.servers.close()
        await self._jobs.close()
        await self._browsers.close()
        if self._containers is not None:
            await self._containers.settle()


def _is_owner(scene: Scene) -> bool:
    return scene.sender == OWNER


def _only_spawned(settings: Callable[[], Settings]) -> Callable[[Scene], bool]:
    """Return a predicate: whether a call may only see the sessions that its own session has spawned."""

    def confined(scene: Scene) -> bool:
        main = scene.origin in (OriginKind.TERMINAL, OriginKind.WEB) and _is_owner(scene)
        sandbox = sandbox_of(settings().sandbox, scene.agent, *scene.senders)
        return sessions_seen(scene.agent, sandbox, main=main) is Sight.SPAWNED

    return confined


def _gates(scene: Scene) -> Doors:
    return Doors(
        owner=_is_owner(scene),
        foreground=scene.origin.foreground,
        agent=all(each.elevated is not Elevation.OFF for each in (scene.agent, *scene.senders)),
        level=scene.elevated,
    )


def _rules(confining: Confining, settings: Callable[[], Settings]) -> Rules:
    return Rules(
        policy=lambda scene: confining.policy(scene, _exec_policy(settings().tools.exec)),
        gates=_gates,
        sandbox_works=confining.works,
        ready=confining.ready,
        under=lambda other: _rules(replace(confining, settings=lambda: other.sandbox), lambda: other),
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
def _command_rules(texts: tuple[str, ...]) -> tuple[Rule, ...]:
    return tuple(map(exec_allowlist.rule, texts))


# --- resources of a run ---


async def equip(
    skills: Skills, plugins: Plugins, settings: Callable[[], Settings], assignment: Assignment
) -> Equipment:
    """Return the skills and plugin sections of a run. Usually there are none, and then little is looked up."""
    agent, home = assignment.agent, assignment.reach  # a subagent has the skills of the agent that started it
    now = settings()
    sandbox = sandbox_of(now.sandbox, agent, *assignment.senders)
    if (
        now.skills == NO_SKILLS
        and not (plugins.registry.sections() or plugins.skill_folders() or assignment.workspace != home)
        and not os.path.exists(f"{home}/{SKILLS}")
        and not os.path.exists(f"{now.home}/{SKILLS}")
        and sandbox.workspace is WorkspaceAccess.WRITE
        and sandbox.browser
    ):
        return NO_EQUIPMENT
    kit = await skills.kit(
        (assignment.acting or agent).name,
        agent_home=home,
        workspace=assignment.workspace,
        subset=_subset(assignment.session),
        tools=_bundles(),
        called=assignment.request.skill,
    )
    origin = assignment.session.origin.kind
    scene = PluginScene(agent=agent, session=assignment.session.id, home=home, origin=origin)
    sections = await plugins.sections(scene, minimal=mode_of(agent, origin) is not Mode.FULL)
    confined = is_confined(sandbox, main=is_main(assignment.session.origin, str(OWNER)))
    # A workspace that is read-only for commands is read-only for the built-in tools too.
    read_only = confined and sandbox.workspace is not WorkspaceAccess.WRITE
    browser = sandbox.browser or not confined
    if kit == Kit() and not sections and not read_only and browser:
        return NO_EQUIPMENT
    return Equipment(
        skills=kit.section,
        plugins=tuple(sections),
        readable=tuple(kit.choice.folders),
        environment=kit.scoped.variables,
        hidden=tuple(sorted(kit.exposed.hidden)),
        read_only=read_only,
        browser=browser,
    )


async def called_by_people(
    skills: Skills, settings: Callable[[], Settings], agent: Agent, session: Session | None
) -> Sequence[SkillCommand]:
    """Return the slash commands of an agent's skills."""
    now = settings()
    home = ensure_home(now.home, agent.name)
    _, stood = await skills.look(agent=agent.name, agent_home=home, workspace=now.defaults.workspace_of(agent, home))
    return skill_commands(stood, subset=_subset(session) if session is not None else None)


async def skills_told(
    skills: Skills, settings: Callable[[], Settings], agent: Agent, session: Session | None
) -> Sequence[Part]:
    """Return the size of the prompt text about each skill of an agent."""
    now = settings()
    home = ensure_home(now.home, agent.name)
    kit = await skills.kit(
        agent.name,
        agent_home=home,
        workspace=now.defaults.workspace_of(agent, home),
        subset=_subset(session) if session is not None else None,
        tools=_bundles(),
    )
    return [
        Part(kind=PartKind.SKILL, name=name, chars=len(words), tokens=tokens_of_text(words), within="skills")
        for name, words in told_of_each(kit.choice)
    ]


def _subset(session: Session) -> tuple[str, ...] | None:
    """Return the skills selected for a session. An invalid value is logged and ignored."""
    core = session.attributes.get("core")
    try:
        return parse_subset(cast("dict[str, Any]", core).get("skills")) if isinstance(core, dict) else None
    except Invalid as error:
        log.warning("skills of a session not read", extra={"session": session.id, "because": error.because})
        return None


@cache
def _bundles() -> dict[str, str]:
    return bundles_by_tool(OPERATIONS)
