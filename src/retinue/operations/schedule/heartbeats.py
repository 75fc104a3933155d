"""List and change the tasks of agents' heartbeats, and run a heartbeat now."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.agents.agent_directory import ensure_home
from retinue.agents.instruction_files import Look, take_now
from retinue.agents.instructions import FileState
from retinue.domain import heartbeat
from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent
from retinue.domain.errors import Invalid, NotAllowed, NotFound
from retinue.domain.heartbeat import CHECKLIST, TASKS_MAX, TITLE_CHARS_MAX, Task, id_from, task_id
from retinue.domain.ids import EnvelopeId, short
from retinue.domain.principal import Principal
from retinue.domain.schedule import Kind, in_words
from retinue.domain.times import show, to_ms
from retinue.domain.trust import Trust
from retinue.engine.scheduler import why_busy
from retinue.operations.base import Desk, for_everyone
from retinue.operations.schedule.schedules import zone_of
from retinue.schedules import heartbeat_files
from retinue.schedules.heartbeat_files import Filed
from retinue.schedules.heartbeats import HEARTBEATS_MAX, id_of
from retinue.schedules.read_with_trust import look_for
from retinue.schedules.schedule_parser import GateForm, form_of
from retinue.store.agents import agents, file_trust
from retinue.store.agents.file_trust import ctime_ms
from retinue.store.core.transaction import Page
from retinue.store.schedules import schedules
from retinue.store.schedules.schedules import Kept

Meta = msgspec.Meta
WHOSE = "whose checklist; left out, an agent's own, or that of whoever answers by default"


class Whose(msgspec.Struct, forbid_unknown_fields=True):
    agent: Annotated[str, Meta(description="only this agent's; left out, all that you see")] = ""


class Which(msgspec.Struct, forbid_unknown_fields=True):
    id: Annotated[str, Meta(description="the task: the name of its file, without .md")]
    agent: Annotated[str, Meta(description=WHOSE)] = ""


class Add(msgspec.Struct, forbid_unknown_fields=True):
    text: Annotated[str, Meta(description="what is to be done each time")]
    id: Annotated[str, Meta(description="letters, digits, `.`, `_` and `-`; left out, made from the title")] = ""
    title: Annotated[str, Meta(description="what it is about, in a few words")] = ""
    gate: Annotated[GateForm | None, Meta(description="a command that says whether it is due: exit 0 is yes")] = None
    overwrite: Annotated[bool, Meta(description="replace one that has this id")] = False
    agent: Annotated[str, Meta(description=WHOSE)] = ""


class Run(msgspec.Struct, forbid_unknown_fields=True):
    ids: Annotated[list[str], Meta(description="which tasks; left out, all that is due")] = []
    force: Annotated[bool, Meta(description="also while it is busy, and past the gates")] = False
    agent: Annotated[str, Meta(description=WHOSE)] = ""


class TaskListed(msgspec.Struct, frozen=True):
    """`because`: why the task is not run; empty if it is."""

    id: str
    title: str
    gated: bool
    because: str = ""


class HeartbeatListed(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """`checklist` is the state of HEARTBEAT.md: whether it exists, and whether it has content."""

    agent: str
    schedule: str | None  # None if it has no heartbeat
    enabled: bool
    because: str
    when: str
    next: str | None
    last_run: str | None
    last: str | None
    checklist: str
    tasks: list[TaskListed]


class HeartbeatsListed(msgspec.Struct, frozen=True):
    heartbeats: list[HeartbeatListed]


class TaskShown(msgspec.Struct, frozen=True):
    agent: str
    id: str
    title: str
    text: str
    gate: GateForm | None
    because: str = ""


class TaskAdded(msgspec.Struct, frozen=True):
    agent: str
    id: str
    title: str
    file: str


class TaskRemoved(msgspec.Struct, frozen=True):
    agent: str
    id: str


class HeartbeatRun(msgspec.Struct, frozen=True):
    """`because`: why no run was started."""

    agent: str
    begun: bool
    because: str
    envelope: EnvelopeId | None


# --- agent and files ---


async def _agent_of(desk: Desk, caller: Principal, named: str) -> Agent:
    """Return the requested agent. Only the owner may change another agent's heartbeat."""
    own = caller.address.name if caller.address.kind is AddressKind.AGENT else ""

    def body(conn: sa.Connection) -> Agent:
        name = named or own or desk.default_agent(conn)
        agent = agents.find(conn, name)
        if agent is None:
            raise NotFound(
                f"there is no agent '{name[:64]}' in this house",
                because="no agent of that name is registered",
                try_this="look at `retinue status` for who is here",
                code="agent.not-found",
            )
        return agent

    agent = await desk.store.read(body)
    if not caller.sees_all and agent.name != own:
        raise NotAllowed(
            f"you may not see to the heartbeat of {agent.name}",
            because="an agent sees to its own, and the owner to all of them",
            try_this="ask the owner",
            code="heartbeat.not-yours",
        )
    return agent


async def _home(desk: Desk, agent: Agent) -> Path:
    return await asyncio.to_thread(ensure_home, desk.home, agent.name)


def _look(desk: Desk) -> Look:
    assert desk.ground is not None  # without file access there are no agent directories
    return partial(look_for, desk.ground)


async def _filed(desk: Desk, agent: Agent) -> list[Filed]:
    return await heartbeat_files.read_all(await _home(desk, agent), _look(desk))


async def _one(desk: Desk, agent: Agent, id_: str) -> Filed:
    found = next((each for each in await _filed(desk, agent) if each.task.id == id_), None)
    if found is None:
        raise heartbeat_files.no_task(id_)
    return found


# --- operations ---


async def listed(desk: Desk, caller: Principal, asked: Whose) -> HeartbeatsListed:
    """List the heartbeats of agents that have one or have a task.

    A single agent is always listed.
    """
    if asked.agent or caller.address.kind is AddressKind.AGENT:
        staff = [await _agent_of(desk, caller, asked.agent)]
    elif not caller.sees_all:
        return HeartbeatsListed([])
    else:
        staff = await desk.store.scan(agents.everyone)
    kept = await desk.store.scan(partial(schedules.listed_of, kind=Kind.HEARTBEAT, limit=HEARTBEATS_MAX))
    here = {each.id: each for each in kept}
    found = [await _listed(desk, agent, here.get(id_of(agent.name))) for agent in staff]
    return HeartbeatsListed([each for each in found if each.schedule or each.tasks or len(staff) == 1])


async def _listed(desk: Desk, agent: Agent, kept: Kept | None) -> HeartbeatListed:
    home, zone = await _home(desk, agent), zone_of(desk)
    place = desk.defaults.workspace_of(agent, home)
    file = await take_now(_look(desk), home=home, workspace=place, name=CHECKLIST)
    state = FileState.EMPTY if file.state is FileState.THERE and heartbeat.is_empty(file.text) else file.state
    stands = await desk.store.scan(partial(schedules.standing, kept=kept)) if kept is not None else None
    return HeartbeatListed(
        agent=agent.name,
        schedule=short(kept.id) if kept is not None else None,
        enabled=kept is not None and kept.enabled,
        because=kept.because if kept is not None else "no heartbeat is set for it",
        when=in_words(kept.schedule.when, kept.place) if kept is not None else "",
        next=show(stands.slot_at, zone) if stands is not None and stands.slot_at is not None else None,
        last_run=show(stands.last_run_at, zone) if stands is not None and stands.last_run_at is not None else None,
        last=stands.last.value if stands is not None and stands.last is not None else None,
        checklist=state.value,
        tasks=[
            TaskListed(each.task.id, each.task.title, each.gate is not None, each.because)
            for each in await _filed(desk, agent)
        ],
    )


async def show_one(desk: Desk, caller: Principal, asked: Which) -> TaskShown:
    agent = await _agent_of(desk, caller, asked.agent)
    found = await _one(desk, agent, task_id(asked.id))
    task = found.task
    return TaskShown(agent.name, task.id, task.title, task.text, form_of(found.gate), found.because)


async def add(desk: Desk, caller: Principal, asked: Add) -> TaskAdded:
    agent = await _agent_of(desk, caller, asked.agent)
    title = " ".join(asked.title.split())[:TITLE_CHARS_MAX]
    id_ = task_id(asked.id) if asked.id else id_from(title or asked.text[:TITLE_CHARS_MAX])
    task = Task(id=id_, title=title or id_, text=asked.text.strip("\n"))
    path = await _put(desk, caller, agent, task, asked)
    if desk.heartbeats is not None:
        await desk.heartbeats.fit()
    return TaskAdded(agent.name, task.id, task.title, str(path))


async def _put(desk: Desk, caller: Principal, agent: Agent, task: Task, asked: Add) -> Path:
    """Write the task file and keep its trust.

    Text from untrusted sources stays marked as untrusted, so that a file cannot turn it into
    instructions.
    """
    home = await _home(desk, agent)
    real = os.path.join(os.path.realpath(home), heartbeat.FOLDER, f"{task.id}.md")
    write = partial(heartbeat_files.put, home, task, asked.gate, overwrite=asked.overwrite)
    if caller.trust is Trust.UNTRUSTED:
        at_ms = to_ms(desk.clock.now())
        await desk.store.write(partial(file_trust.mark_untrusted, paths=[real], at_ms=at_ms, run=None), point="label")
        return await asyncio.to_thread(write)
    path = await asyncio.to_thread(write)
    if await desk.store.read(partial(file_trust.is_needed, path=real)):
        status = await asyncio.to_thread(os.stat, real)
        body = partial(file_trust.mark_clean, path=real, ctime_ms=ctime_ms(status), run=None)
        await desk.store.write(body, point="label")
    return path


async def remove(desk: Desk, caller: Principal, asked: Which) -> TaskRemoved:
    agent = await _agent_of(desk, caller, asked.agent)
    await asyncio.to_thread(heartbeat_files.remove, await _home(desk, agent), task_id(asked.id))
    if desk.heartbeats is not None:
        await desk.heartbeats.fit()
    return TaskRemoved(agent.name, asked.id)


async def run(desk: Desk, caller: Principal, asked: Run) -> HeartbeatRun:
    """Run a heartbeat now, whatever its active hours.

    Unless forced, skip it if its last run is still working.
    """
    agent = await _agent_of(desk, caller, asked.agent)
    ids = [task_id(id_) for id_ in dict.fromkeys(asked.ids)]
    if len(ids) > TASKS_MAX:
        raise Invalid(
            "these are too many tasks",
            because=f"a heartbeat has at most {TASKS_MAX}",
            try_this="leave `ids` out to have all that is due",
            code="heartbeat.too-many",
        )
    for id_ in ids:
        if because := (await _one(desk, agent, id_)).because:
            raise Invalid(
                f"the task '{id_}' cannot be done",
                because=because,
                try_this=f"look at `retinue heartbeat show {id_}`",
                code="heartbeat.task-unusable",
            )

    def body(conn: sa.Connection) -> HeartbeatRun:
        page = Page(conn, to_ms(desk.clock.now()))
        kept = schedules.get(conn, id_of(agent.name))
        if kept is None:
            raise NotFound(
                f"{agent.name} has no heartbeat",
                because="none is set for it, and whoever answers by default has one only while there is a task",
                try_this=f"retinue agent set {agent.name} --heartbeat-every-s 1800",
                code="heartbeat.not-found",
            )
        because = "" if asked.force else why_busy(conn, kept.id)
        if because:
            schedules.skipped_by_hand(page, kept, because=because)
        slot = None if because else schedules.by_hand(page, kept, forced=asked.force, text="\n".join(ids))
        page.close()
        return HeartbeatRun(
            agent.name, begun=slot is not None, because=because, envelope=slot.envelope if slot is not None else None
        )

    return await desk.store.write(body, point="schedule")


OPERATIONS = (
    for_everyone(
        "heartbeat.list",
        "List heartbeats: how often agents look by themselves, and what is on their checklists.",
        Whose,
        listed,
        HeartbeatsListed,
        effect=False,
    ),
    for_everyone("heartbeat.show", "Show a task of a heartbeat.", Which, show_one, TaskShown, effect=False),
    for_everyone("heartbeat.add", "Have an agent look after something at each of its heartbeats.", Add, add, TaskAdded),
    for_everyone("heartbeat.remove", "Take a task off the checklist of a heartbeat.", Which, remove, TaskRemoved),
    for_everyone(
        "heartbeat.run", "Have an agent do tasks of its heartbeat now, or all that is due.", Run, run, HeartbeatRun
    ),
)
