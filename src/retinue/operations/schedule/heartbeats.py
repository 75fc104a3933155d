"""Operations that list heartbeats, show, add and remove their tasks, and run a heartbeat now."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.agents.agent_directory import ensure_agent_directory
from retinue.agents.instruction_files import ReadWithTrust, read_instruction_file
from retinue.agents.instructions import InstructionFileState
from retinue.domain import heartbeat
from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent
from retinue.domain.heartbeat import (
    CHECKLIST_FILE,
    TASK_TITLE_CHARS_MAX,
    TASKS_MAX,
    HeartbeatTask,
    derive_task_id,
    validate_task_id,
)
from retinue.domain.ids import EnvelopeId, short_id
from retinue.domain.principal import Principal
from retinue.domain.schedule import ScheduleKind, describe_trigger
from retinue.domain.shared_errors import AgentNotFound, TooManyHeartbeatTasks
from retinue.domain.times import format_time, to_ms
from retinue.domain.trust import Trust
from retinue.engine.scheduler import overlap_reason
from retinue.operations.base import Services, unrestricted_operation
from retinue.operations.schedule.errors import HeartbeatNotAllowed, HeartbeatNotFound, HeartbeatTaskUnusable
from retinue.operations.schedule.schedules import owner_zone
from retinue.schedules import heartbeat_files
from retinue.schedules.file_reader import read_with_trust
from retinue.schedules.heartbeat_files import HeartbeatTaskFile
from retinue.schedules.heartbeats import HEARTBEATS_MAX, heartbeat_schedule_id
from retinue.schedules.schedule_parser import GateForm, gate_to_form
from retinue.store.agents import agents, file_trust
from retinue.store.agents.file_trust import ctime_ms
from retinue.store.core.transaction import Transaction
from retinue.store.schedules import schedules
from retinue.store.schedules.schedules import StoredSchedule

Meta = msgspec.Meta
AGENT_HELP = "name of an agent; default: the calling agent, or the default agent"


class HeartbeatListRequest(msgspec.Struct, forbid_unknown_fields=True):
    agent: Annotated[
        str, Meta(description="only the heartbeat of this agent; default: all heartbeats that you may see")
    ] = ""


class HeartbeatTaskRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: Annotated[str, Meta(description="id of the task: the name of its file, without .md")]
    agent: Annotated[str, Meta(description=AGENT_HELP)] = ""


class HeartbeatAddRequest(msgspec.Struct, forbid_unknown_fields=True):
    text: Annotated[str, Meta(description="what the agent should do at each heartbeat")]
    id: Annotated[
        str, Meta(description="id of the task: letters, digits, `.`, `_` and `-`; default: made from the title")
    ] = ""
    title: Annotated[str, Meta(description="title of the task, in a few words")] = ""
    gate: Annotated[
        GateForm | None, Meta(description="command that decides whether the task is due; exit status 0 means yes")
    ] = None
    overwrite: Annotated[bool, Meta(description="replace an existing task with this id")] = False
    agent: Annotated[str, Meta(description=AGENT_HELP)] = ""


class HeartbeatRunRequest(msgspec.Struct, forbid_unknown_fields=True):
    ids: Annotated[list[str], Meta(description="ids of the tasks to run; default: all tasks that are due")] = []
    force: Annotated[bool, Meta(description="run even if the last run is still in progress, and skip the gates")] = (
        False
    )
    agent: Annotated[str, Meta(description=AGENT_HELP)] = ""


class HeartbeatTaskRow(msgspec.Struct, frozen=True):
    """One task of a heartbeat. `because` is the reason why the task cannot run, or empty if it can run."""

    id: str
    title: str
    has_gate: bool
    because: str = ""


class HeartbeatDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The heartbeat of one agent. `checklist` says whether HEARTBEAT.md exists, and whether it has content."""

    agent: str
    schedule: str | None  # None if it has no heartbeat
    enabled: bool
    because: str
    when: str
    next: str | None
    last_run: str | None
    last_status: str | None
    checklist: str
    tasks: list[HeartbeatTaskRow]


class HeartbeatList(msgspec.Struct, frozen=True):
    heartbeats: list[HeartbeatDetails]


class HeartbeatTaskDetails(msgspec.Struct, frozen=True):
    agent: str
    id: str
    title: str
    text: str
    gate: GateForm | None
    because: str = ""


class HeartbeatTaskAdded(msgspec.Struct, frozen=True):
    agent: str
    id: str
    title: str
    file: str


class HeartbeatTaskRemoved(msgspec.Struct, frozen=True):
    agent: str
    id: str


class HeartbeatRunResult(msgspec.Struct, frozen=True):
    """Result of a request to run a heartbeat. `because` is the reason if no run was started."""

    agent: str
    started: bool
    because: str
    envelope: EnvelopeId | None


# --- agent and files ---


async def _require_agent(services: Services, caller: Principal, agent_name: str) -> Agent:
    """Return the agent with this name, or by default the calling agent or the default agent.

    Only the agent itself and the owner may change its heartbeat. Raise for other callers.
    """
    own = caller.address.name if caller.address.kind is AddressKind.AGENT else ""

    def body(conn: sa.Connection) -> Agent:
        name = agent_name or own or services.default_agent(conn)
        agent = agents.find(conn, name)
        if agent is None:
            raise AgentNotFound(name)
        return agent

    agent = await services.store.read(body)
    if not caller.sees_everything and agent.name != own:
        raise HeartbeatNotAllowed(agent.name)
    return agent


async def _ensure_agent_directory(services: Services, agent: Agent) -> Path:
    return await asyncio.to_thread(ensure_agent_directory, services.data_dir, agent.name)


def _build_file_reader(services: Services) -> ReadWithTrust:
    assert services.file_services is not None  # without file access there are no agent directories
    return partial(read_with_trust, services.file_services)


async def _read_tasks(services: Services, agent: Agent) -> list[HeartbeatTaskFile]:
    return await heartbeat_files.read_tasks(
        await _ensure_agent_directory(services, agent), _build_file_reader(services)
    )


async def _require_task(services: Services, agent: Agent, id_: str) -> HeartbeatTaskFile:
    found = next((each for each in await _read_tasks(services, agent) if each.task.id == id_), None)
    if found is None:
        raise heartbeat_files.task_not_found(id_)
    return found


# --- operations ---


async def list_heartbeats(services: Services, caller: Principal, request: HeartbeatListRequest) -> HeartbeatList:
    """List the heartbeats of all agents that have a heartbeat or a task.

    An agent that the request names is listed even if it has neither.
    """
    if request.agent or caller.address.kind is AddressKind.AGENT:
        listed = [await _require_agent(services, caller, request.agent)]
    elif not caller.sees_everything:
        return HeartbeatList([])
    else:
        listed = await services.store.scan(agents.list_all)
    kept = await services.store.scan(partial(schedules.list_of_kind, kind=ScheduleKind.HEARTBEAT, limit=HEARTBEATS_MAX))
    here = {each.id: each for each in kept}
    found = [
        await _to_heartbeat_details(services, agent, here.get(heartbeat_schedule_id(agent.name))) for agent in listed
    ]
    return HeartbeatList([each for each in found if each.schedule or each.tasks or len(listed) == 1])


async def _to_heartbeat_details(services: Services, agent: Agent, stored: StoredSchedule | None) -> HeartbeatDetails:
    home, zone = await _ensure_agent_directory(services, agent), owner_zone(services)
    place = services.defaults.workspace_of(agent, home)
    file = await read_instruction_file(
        _build_file_reader(services), agent_directory=home, workspace=place, name=CHECKLIST_FILE
    )
    state = (
        InstructionFileState.EMPTY
        if file.state is InstructionFileState.THERE and heartbeat.is_checklist_empty(file.text)
        else file.state
    )
    status = await services.store.scan(partial(schedules.get_status, stored=stored)) if stored is not None else None
    return HeartbeatDetails(
        agent=agent.name,
        schedule=short_id(stored.id) if stored is not None else None,
        enabled=stored is not None and stored.enabled,
        because=stored.because if stored is not None else "it has no heartbeat",
        when=describe_trigger(stored.schedule.when, stored.zone_info) if stored is not None else "",
        next=format_time(status.occurrence_at, zone)
        if status is not None and status.occurrence_at is not None
        else None,
        last_run=format_time(status.last_run_at, zone)
        if status is not None and status.last_run_at is not None
        else None,
        last_status=status.last_state.value if status is not None and status.last_state is not None else None,
        checklist=state.value,
        tasks=[
            HeartbeatTaskRow(each.task.id, each.task.title, each.gate is not None, each.because)
            for each in await _read_tasks(services, agent)
        ],
    )


async def show_task(services: Services, caller: Principal, request: HeartbeatTaskRequest) -> HeartbeatTaskDetails:
    agent = await _require_agent(services, caller, request.agent)
    found = await _require_task(services, agent, validate_task_id(request.id))
    task = found.task
    return HeartbeatTaskDetails(agent.name, task.id, task.title, task.text, gate_to_form(found.gate), found.because)


async def add_task(services: Services, caller: Principal, request: HeartbeatAddRequest) -> HeartbeatTaskAdded:
    agent = await _require_agent(services, caller, request.agent)
    title = " ".join(request.title.split())[:TASK_TITLE_CHARS_MAX]
    id_ = validate_task_id(request.id) if request.id else derive_task_id(title or request.text[:TASK_TITLE_CHARS_MAX])
    task = HeartbeatTask(id=id_, title=title or id_, text=request.text.strip("\n"))
    path = await _write_task(services, caller, agent, task, request)
    if services.heartbeats is not None:
        await services.heartbeats.sync()
    return HeartbeatTaskAdded(agent.name, task.id, task.title, str(path))


async def _write_task(
    services: Services, caller: Principal, agent: Agent, task: HeartbeatTask, request: HeartbeatAddRequest
) -> Path:
    """Write the file of a heartbeat task and record its trust.

    Text from an untrusted source stays marked as untrusted, so that writing it to a file does not make
    it trusted.
    """
    home = await _ensure_agent_directory(services, agent)
    real = os.path.join(os.path.realpath(home), heartbeat.TASKS_FOLDER, f"{task.id}.md")
    write = partial(heartbeat_files.write_task, home, task, request.gate, overwrite=request.overwrite)
    if caller.trust is Trust.UNTRUSTED:
        at_ms = to_ms(services.clock.now())
        await services.store.write(
            partial(file_trust.mark_untrusted, paths=[real], at_ms=at_ms, run=None), point="label"
        )
        return await asyncio.to_thread(write)
    path = await asyncio.to_thread(write)
    if await services.store.read(partial(file_trust.is_needed, path=real)):
        status = await asyncio.to_thread(os.stat, real)
        body = partial(file_trust.mark_clean, path=real, ctime_ms=ctime_ms(status), run=None)
        await services.store.write(body, point="label")
    return path


async def remove_task(services: Services, caller: Principal, request: HeartbeatTaskRequest) -> HeartbeatTaskRemoved:
    agent = await _require_agent(services, caller, request.agent)
    await asyncio.to_thread(
        heartbeat_files.remove_task, await _ensure_agent_directory(services, agent), validate_task_id(request.id)
    )
    if services.heartbeats is not None:
        await services.heartbeats.sync()
    return HeartbeatTaskRemoved(agent.name, request.id)


async def run_heartbeat(services: Services, caller: Principal, request: HeartbeatRunRequest) -> HeartbeatRunResult:
    """Run a heartbeat now, even outside its active hours.

    If the last run of the heartbeat is still active, no run is started unless `force` is set.
    """
    agent = await _require_agent(services, caller, request.agent)
    ids = [validate_task_id(id_) for id_ in dict.fromkeys(request.ids)]
    if len(ids) > TASKS_MAX:
        raise TooManyHeartbeatTasks(tasks_max=TASKS_MAX)
    for id_ in ids:
        if because := (await _require_task(services, agent, id_)).because:
            raise HeartbeatTaskUnusable(id_, because=because)

    def body(conn: sa.Connection) -> HeartbeatRunResult:
        tx = Transaction(conn, to_ms(services.clock.now()))
        kept = schedules.get(conn, heartbeat_schedule_id(agent.name))
        if kept is None:
            raise HeartbeatNotFound(agent.name)
        because = "" if request.force else overlap_reason(conn, kept.id)
        if because:
            schedules.record_manual_skip(tx, kept, because=because)
        occurrence = (
            None
            if because
            else schedules.create_manual_occurrence(tx, kept, is_forced=request.force, text="\n".join(ids))
        )
        tx.close()
        return HeartbeatRunResult(
            agent.name,
            started=occurrence is not None,
            because=because,
            envelope=occurrence.envelope if occurrence is not None else None,
        )

    return await services.store.write(body, point="schedule")


OPERATIONS = (
    unrestricted_operation(
        "heartbeat.list",
        "List heartbeats with their times and tasks.",
        HeartbeatListRequest,
        list_heartbeats,
        HeartbeatList,
        has_effect=False,
    ),
    unrestricted_operation(
        "heartbeat.show",
        "Show a heartbeat task.",
        HeartbeatTaskRequest,
        show_task,
        HeartbeatTaskDetails,
        has_effect=False,
    ),
    unrestricted_operation(
        "heartbeat.add",
        "Add a task to an agent's heartbeat.",
        HeartbeatAddRequest,
        add_task,
        HeartbeatTaskAdded,
    ),
    unrestricted_operation(
        "heartbeat.remove",
        "Remove a task from an agent's heartbeat.",
        HeartbeatTaskRequest,
        remove_task,
        HeartbeatTaskRemoved,
    ),
    unrestricted_operation(
        "heartbeat.run",
        "Run the given heartbeat tasks now, or all tasks that are due.",
        HeartbeatRunRequest,
        run_heartbeat,
        HeartbeatRunResult,
    ),
)
