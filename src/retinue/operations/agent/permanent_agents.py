"""Operation and tool with which an agent creates permanent agents, with its own limits and inside its workspace."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import msgspec
import sqlalchemy as sa

from retinue.agents.agent_diff import differences
from retinue.agents.agent_directory import ensure_home, ensure_workspace, home_of
from retinue.config import validators
from retinue.config.declarations import normal_id
from retinue.domain.address import BACKGROUND, AddressKind, valid_name
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.errors import Invalid, NotAllowed
from retinue.domain.permission import STAFF_FOLDER, Access, Permission
from retinue.domain.principal import Principal
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.operations.agent.agents import check_text, find_agent, put_agent, tell_engine
from retinue.operations.base import Desk, Operation
from retinue.operations.operation_tools import OperationTool
from retinue.policy.access.permissions import least_level
from retinue.store.agents import agents
from retinue.store.core.transaction import Page
from retinue.tools.base import Scene

TOOL = "create_permanent_agent"


class Permanent(msgspec.Struct, forbid_unknown_fields=True):
    """`agent_id` is the agent's name in addresses; by default it is derived from `name`, the display name.

    `workspace_dir` is inside the workspace of the calling agent; by default it is a new directory there.
    """

    name: str
    description: str
    system_prompt: str
    workspace_dir: str = ""
    agent_id: str = ""


class PermanentAgent(msgspec.Struct, frozen=True):
    name: str
    display_name: str
    version: int
    created: bool
    changed: list[str]
    workspace: str


async def make(desk: Desk, caller: Principal, asked: Permanent) -> PermanentAgent:
    """Create a permanent agent, or change one that the caller created.

    The new agent gets no more rights than the caller has.
    """
    name = _id_of(asked)
    _check_texts(asked)
    now = desk.clock.now()
    workspace = await _workspace(desk, await desk.store.read(partial(_maker, caller=caller)), name, asked.workspace_dir)

    def body(conn: sa.Connection) -> tuple[Agent | None, Agent]:
        page = Page(conn, to_ms(now))
        there = agents.find(conn, name)
        if there is not None:
            _check_maker(conn, there, caller)
            made = _changed(there, asked, workspace)
        else:
            made = _new(_maker(conn, caller), name, asked, workspace)
        kept = there if there is not None and made == there else put_agent(page, made, caller)
        page.close()
        return there, kept

    def told(done: tuple[Agent | None, Agent] | None) -> None:
        tell_engine(desk, done[1] if done else None)

    before, kept = await desk.store.write(body, point="agent", then=told)
    home = await asyncio.to_thread(ensure_home, desk.home, kept.name)
    await asyncio.to_thread(partial(ensure_workspace, Path(kept.workspace), home=home))
    return PermanentAgent(
        name=kept.name,
        display_name=kept.display_name,
        version=kept.version,
        created=before is None,
        changed=[] if before is None else list(differences(before, kept)),
        workspace=kept.workspace,
    )


def _id_of(asked: Permanent) -> str:
    name = valid_name(asked.agent_id, what="an agent") if asked.agent_id else normal_id(asked.name)
    if name.casefold() == BACKGROUND:
        raise Invalid(
            f"no agent can be called {name}",
            because="agent:background is the house's own",
            try_this="choose another name",
            code="agent.name-reserved",
        )
    return name


def _check_texts(asked: Permanent) -> None:
    wrong = validators.display_name(asked.name) if asked.name.strip() else "is empty"
    if wrong:
        raise Invalid(
            "this is no name for an agent",
            because=f"it {wrong}",
            try_this="name it in a word or two",
            code="name.invalid",
        )
    check_text("description", asked.description)
    check_text("instructions", asked.system_prompt)


def _maker(conn: sa.Connection, caller: Principal) -> Agent:
    if caller.address.kind is not AddressKind.AGENT:
        raise NotAllowed(
            "only an agent can ask for this",
            because="whoever is taken on so works inside the workspace of the agent that asks",
            try_this="retinue agent register NAME",
            code="agent.not-an-agent",
        )
    return find_agent(conn, caller, caller.address.name)


def _check_maker(conn: sa.Connection, there: Agent, caller: Principal) -> None:
    """Raise unless the caller made both the first and the latest version, or has level boss.

    The latest version counts too: an agent that was deleted and registered again by the owner belongs
    to the owner.
    """
    versions = (agents.version(conn, there.name, number) for number in (1, there.version))
    if caller.level is PermissionLevel.BOSS or all(
        v is not None and v.changed_by == str(caller.address) for v in versions
    ):
        return
    raise NotAllowed(
        f"you may not change {there.name}",
        because="an agent changes only those that it took on itself and nobody else has changed since",
        try_this="choose another name, or ask the owner of this house",
        code="agent.not-yours",
    )


def _new(maker: Agent, name: str, asked: Permanent, workspace: str) -> Agent:
    """Return a new agent with its creator's limits, so that the creator cannot gain rights through it."""
    return replace(
        maker,
        name=name,
        display_name=asked.name if asked.name != name else "",
        description=asked.description,
        instructions=asked.system_prompt,
        workspace=workspace,
        context_files=(),
        permission_level=least_level((maker.permission_level, PermissionLevel.STANDARD)),
        icon="",
        colour=None,
        visible=True,
        version=1,
    )


def _changed(there: Agent, asked: Permanent, workspace: str) -> Agent:
    return replace(
        there,
        display_name=asked.name if asked.name != there.name else "",
        description=asked.description,
        instructions=asked.system_prompt,
        workspace=workspace if asked.workspace_dir else there.workspace,
    )


async def _workspace(desk: Desk, maker: Agent, name: str, wanted: str) -> str:
    """Return the real path of the workspace, which must be inside the creator's. A link could lead anywhere."""
    home = home_of(desk.home, maker.name)
    path = PurePosixPath(wanted or f"{STAFF_FOLDER}/{name}")
    main = Path(await asyncio.to_thread(os.path.realpath, desk.defaults.workspace_of(maker, home)))
    found = Path(await asyncio.to_thread(os.path.realpath, main / path))
    own = main / STAFF_FOLDER  # the rest of the workspace belongs to the creator alone
    if ".." in path.parts or found == own or not found.is_relative_to(own):
        raise Invalid(
            f"'{wanted[:200]}' cannot be its workspace",
            because=f"it lies below {own}, and no link leads out of it",
            try_this=f"{STAFF_FOLDER}/{name}, or leave it out",
            code="agent.workspace-outside",
        )
    return str(found)


class CreatePermanentAgent(OperationTool):
    """The operation as a tool, under its established name. It needs an approval, unless granted."""

    def __init__(self, desk: Callable[[], Desk]) -> None:
        super().__init__(PERMANENT, desk)
        self.spec = replace(
            self.spec,
            name=TOOL,
            description="Take an agent on for good, or change one that you took on: by its name, or by its id.",
        )

    def needs(self, arguments: Permanent, scene: Scene) -> Sequence[Permission]:
        return (Permission(Access.TOOL, TOOL),)


PERMANENT = Operation(
    name="agent.permanent",
    summary="Take an agent on for good, as one of the staff.",
    parameters=Permanent,
    handler=make,
    result=PermanentAgent,
    permission=PermissionLevel.PRIVILEGED,
    effect=True,
)
OPERATIONS = (PERMANENT,)
