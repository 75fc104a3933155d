"""An operation and a tool with which agents create permanent agents.

A new agent works inside the workspace of the agent that creates it, and has the same limits.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import msgspec
import sqlalchemy as sa

from retinue.agents.agent_diff import diff_agents
from retinue.agents.agent_directory import agent_directory_of, ensure_agent_directory, ensure_workspace
from retinue.config import validators
from retinue.config.declarations import normalize_id
from retinue.domain.address import BACKGROUND, AddressKind, validate_name
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.permission import Permission, PermissionKind
from retinue.domain.principal import Principal
from retinue.domain.protected_paths import CREATED_AGENTS_FOLDER
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.operations.agent.agents import check_text, notify_engine, require_visible_agent, store_agent
from retinue.operations.agent.errors import (
    AgentCallerRequired,
    AgentCreatedByOther,
    AgentDisplayNameInvalid,
    AgentNameReserved,
    AgentWorkspaceOutside,
)
from retinue.operations.base import Operation, Services
from retinue.operations.operation_tools import OperationTool
from retinue.policy.access.operation_permissions import lowest_level
from retinue.store.agents import agents
from retinue.store.core.transaction import Transaction
from retinue.tools.base import ToolContext

TOOL_NAME = "create_permanent_agent"


class PermanentAgentRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Create a permanent agent.

    `name` is the display name. `agent_id` is the agent's name in addresses; by default, it is derived
    from `name`. `workspace_dir` is a directory inside the workspace of the calling agent; by default, it
    is a new directory there.
    """

    name: str
    description: str
    system_prompt: str
    workspace_dir: str = ""
    agent_id: str = ""


class PermanentAgentResult(msgspec.Struct, frozen=True):
    name: str
    display_name: str
    version: int
    created: bool
    changed: list[str]
    workspace: str


async def create_permanent_agent(
    services: Services, caller: Principal, request: PermanentAgentRequest
) -> PermanentAgentResult:
    """Create a permanent agent, or change one that the caller created.

    The new agent gets no more rights than the caller has.
    """
    name = _agent_name(request)
    _check_texts(request)
    now = services.clock.now()
    workspace = await _resolve_workspace(
        services, await services.store.read(partial(_require_creator, caller=caller)), name, request.workspace_dir
    )

    def body(conn: sa.Connection) -> tuple[Agent | None, Agent]:
        tx = Transaction(conn, to_ms(now))
        there = agents.find(conn, name)
        if there is not None:
            _check_created_by_caller(conn, there, caller)
            made = _build_changed_agent(there, request, workspace)
        else:
            made = _build_agent(_require_creator(conn, caller), name, request, workspace)
        kept = there if there is not None and made == there else store_agent(tx, made, caller)
        tx.close()
        return there, kept

    def on_commit(done: tuple[Agent | None, Agent] | None) -> None:
        notify_engine(services, done[1] if done else None)

    before, kept = await services.store.write(body, point="agent", then=on_commit)
    directory = await asyncio.to_thread(ensure_agent_directory, services.data_dir, kept.name)
    await asyncio.to_thread(partial(ensure_workspace, Path(kept.workspace), agent_directory=directory))
    return PermanentAgentResult(
        name=kept.name,
        display_name=kept.display_name,
        version=kept.version,
        created=before is None,
        changed=[] if before is None else list(diff_agents(before, kept)),
        workspace=kept.workspace,
    )


def _agent_name(request: PermanentAgentRequest) -> str:
    name = validate_name(request.agent_id, what="an agent") if request.agent_id else normalize_id(request.name)
    if name.casefold() == BACKGROUND:
        raise AgentNameReserved(name)
    return name


def _check_texts(request: PermanentAgentRequest) -> None:
    wrong = validators.check_display_name(request.name) if request.name.strip() else "is empty"
    if wrong:
        raise AgentDisplayNameInvalid(because=f"it {wrong}")
    check_text("description", request.description)
    check_text("instructions", request.system_prompt)


def _require_creator(conn: sa.Connection, caller: Principal) -> Agent:
    if caller.address.kind is not AddressKind.AGENT:
        raise AgentCallerRequired
    return require_visible_agent(conn, caller, caller.address.name)


def _check_created_by_caller(conn: sa.Connection, agent: Agent, caller: Principal) -> None:
    """Raise an error unless the caller has the level boss, or stored the first and the latest version of the agent.

    The latest version is checked too, so that the caller cannot change an agent that the owner deleted and
    registered again.
    """
    versions = (agents.get_version(conn, agent.name, number) for number in (1, agent.version))
    if caller.level is PermissionLevel.BOSS or all(
        v is not None and v.changed_by == str(caller.address) for v in versions
    ):
        return
    raise AgentCreatedByOther(agent.name)


def _build_agent(creator: Agent, name: str, request: PermanentAgentRequest, workspace: str) -> Agent:
    """Return a new agent with its creator's limits, so that the creator cannot gain rights through it."""
    return replace(
        creator,
        name=name,
        display_name=request.name if request.name != name else "",
        description=request.description,
        instructions=request.system_prompt,
        workspace=workspace,
        context_files=(),
        permission_level=lowest_level((creator.permission_level, PermissionLevel.STANDARD)),
        icon="",
        color=None,
        visible=True,
        version=1,
    )


def _build_changed_agent(agent: Agent, request: PermanentAgentRequest, workspace: str) -> Agent:
    return replace(
        agent,
        display_name=request.name if request.name != agent.name else "",
        description=request.description,
        instructions=request.system_prompt,
        workspace=workspace if request.workspace_dir else agent.workspace,
    )


async def _resolve_workspace(services: Services, creator: Agent, name: str, wanted: str) -> str:
    """Return the real path of the new agent's workspace. Raise if it is not inside the creator's workspace."""
    directory = agent_directory_of(services.data_dir, creator.name)
    path = PurePosixPath(wanted or f"{CREATED_AGENTS_FOLDER}/{name}")
    main = Path(await asyncio.to_thread(os.path.realpath, services.defaults.workspace_of(creator, directory)))
    found = Path(await asyncio.to_thread(os.path.realpath, main / path))
    own = main / CREATED_AGENTS_FOLDER  # the rest of the workspace belongs to the creator alone
    if ".." in path.parts or found == own or not found.is_relative_to(own):
        raise AgentWorkspaceOutside(wanted, parent=str(own), example=f"{CREATED_AGENTS_FOLDER}/{name}")
    return str(found)


class PermanentAgentTool(OperationTool):
    """Tool that lets an agent create a permanent agent. A call needs an approval, unless a grant allows it."""

    def __init__(self, services: Callable[[], Services]) -> None:
        super().__init__(PERMANENT_AGENT_OPERATION, services)
        self.spec = replace(
            self.spec,
            name=TOOL_NAME,
            description=(
                "Create a permanent agent, or change one that you created, by its `agent_id` or else by its `name`. "
                "It works inside your workspace and gets no more rights than you have. "
                "Returns its name, version and workspace."
            ),
        )

    def required_permissions(self, arguments: PermanentAgentRequest, context: ToolContext) -> Sequence[Permission]:
        return (Permission(PermissionKind.TOOL, TOOL_NAME),)


PERMANENT_AGENT_OPERATION = Operation(
    name="agent.create_permanent",
    summary="Create a permanent agent inside your workspace (for agents only).",
    parameters=PermanentAgentRequest,
    handler=create_permanent_agent,
    result=PermanentAgentResult,
    permission=PermissionLevel.PRIVILEGED,
    has_effect=True,
)
OPERATIONS = (PERMANENT_AGENT_OPERATION,)
