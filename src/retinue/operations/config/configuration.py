"""Operations on the settings file: show, check, patch, reload, apply its agents and people, and export."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.agents.agent_directory import ensure_home
from retinue.agents.apply_plan import FILE, Known, Planned, Step, plan_agents, plan_people
from retinue.config import Change, Secret, examine, load
from retinue.domain import address
from retinue.domain.address import Address
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.errors import Invalid
from retinue.domain.event import NewsKind
from retinue.domain.person import Role
from retinue.domain.principal import Principal
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.domain.token import Token, TokenKind
from retinue.engine.run_finish import NOTHING_CANCELLED, Cancelled, cancel_in
from retinue.operations.agent.agents import runners_known
from retinue.operations.base import Desk, Nothing, Operation
from retinue.operations.config.pending_restarts import write_down
from retinue.operations.config_holder import Keeper
from retinue.operations.connector import declared_bindings
from retinue.operations.connector.declared_bindings import PlannedBinding
from retinue.operations.person.tokens import new_token
from retinue.operations.schedule import declared_schedules
from retinue.operations.schedule.declared_schedules import PlannedSchedule
from retinue.store.agents import agents
from retinue.store.core.transaction import Page
from retinue.store.people import people, tokens
from retinue.store.runs import runs
from retinue.store.sessions import sessions

FILE_BYTES_MAX = 1_000_000


class Check(msgspec.Struct, forbid_unknown_fields=True):
    """The text to check. By default, the current settings file is checked."""

    text: str | None = None


class Patch(msgspec.Struct, forbid_unknown_fields=True):
    """`changes` is merged into the file: tables recursively, lists of tables by id or name; null removes a key."""

    changes: dict[str, Any]
    expected_hash: str


class Apply(msgspec.Struct, forbid_unknown_fields=True):
    """`take` = "file" overwrites later changes made elsewhere. `dry_run` shows the plan and stores nothing.

    `reset` also stops and clears every run, revokes all tokens of agents and gives each agent a new one.
    """

    dry_run: bool = False
    take: str = ""
    reset: bool = False


class ConfigShown(msgspec.Struct, frozen=True, rename="kebab"):
    file: str
    hash: str
    files: list[str]
    settings: dict[str, Any]
    default_agent: str | None
    waiting_for_a_restart: list[str]


class ConfigChecked(msgspec.Struct, frozen=True):
    ok: bool
    faults: list[str]
    hash: str


class ConfigChanged(msgspec.Struct, frozen=True, rename="kebab"):
    changes: list[Change]
    waiting_for_a_restart: list[str]
    hash: str


class ValueChanged(msgspec.Struct, frozen=True, rename={"was": "from", "becomes": "to"}):
    was: Any
    becomes: Any


class StepPlanned(msgspec.Struct, frozen=True):
    """What apply does, or would do, to one agent, person, schedule or binding."""

    name: str
    step: Step
    because: str
    changed: dict[str, ValueChanged]


class ConfigApplied(msgspec.Struct, frozen=True, rename="kebab"):
    """`tokens` are those of added people and, after a reset, of agents: shown once, and not in a dry run."""

    dry_run: bool
    agents: list[StepPlanned]
    people: list[StepPlanned]
    schedules: list[StepPlanned]
    bindings: list[StepPlanned]
    not_yet: list[str]
    tokens: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    cleared_runs: int | msgspec.UnsetType = msgspec.UNSET
    shown_once: list[str] | msgspec.UnsetType = msgspec.UNSET


class ConfigExported(msgspec.Struct, frozen=True):
    text: str


async def show_config(desk: Desk, caller: Principal, asked: Nothing) -> ConfigShown:
    keeper = desk.keeper()
    current = keeper.current
    return ConfigShown(
        file=str(current.file),
        hash=current.hash,
        files=[str(file) for file in current.files],
        settings=_plain(asdict(current.settings) | {"store": "(not shown)"}),
        default_agent=current.default_agent,
        waiting_for_a_restart=[change.path for change in keeper.waiting],
    )


async def check(desk: Desk, caller: Principal, asked: Check) -> ConfigChecked:
    keeper = desk.keeper()
    if asked.text is not None and len(asked.text.encode()) > FILE_BYTES_MAX:
        raise Invalid(
            "this is too long for a settings file",
            because=f"one has at most {FILE_BYTES_MAX:,} bytes",
            try_this="put parts of it into files of their own, and `include` them",
            code="config.too-large",
        )
    examined = await asyncio.to_thread(examine, keeper.environment, text=asked.text)
    return ConfigChecked(
        ok=not examined.faults,
        faults=[str(fault) for fault in examined.faults],
        hash=examined.configuration.hash,
    )


async def patch(desk: Desk, caller: Principal, asked: Patch) -> ConfigChanged:
    """Change the settings file, keep its comments, and apply the changes that need no restart."""
    from retinue.config.file_writer import change_file  # lazy: imports tomlkit, which most servers never need

    keeper = desk.keeper()
    await asyncio.to_thread(change_file, keeper.environment, asked.changes, expected_hash=asked.expected_hash)
    changes = keeper.reload()
    if keeper.waiting:
        for session in await desk.store.scan(partial(sessions.recent, limit=1, seen_by=caller)):
            paths = [change.path for change in keeper.waiting]
            await asyncio.to_thread(write_down, desk.home, paths, agent=session.agent, session=session.id)
    return _changes(keeper, changes)


async def read_again(desk: Desk, caller: Principal, asked: Nothing) -> ConfigChanged:
    keeper = desk.keeper()
    return _changes(keeper, keeper.reload())


async def apply(desk: Desk, caller: Principal, asked: Apply) -> ConfigApplied:
    """Apply the agents, people, schedules and bindings of the file, in one commit."""
    if asked.take not in ("", FILE):
        raise Invalid(
            f"'{asked.take[:40]}' cannot be taken",
            because='`take` is "file", or left out',
            try_this="leave it out to see what differs",
            code="config.take-invalid",
        )
    keeper = desk.keeper()
    declared = (await asyncio.to_thread(load, keeper.environment)).staff
    _check_runners(desk, declared.agents)
    roles = {name: Role(table["role"]) for name, table in declared.people.items()}
    now = desk.clock.now()
    made = {name: _new_token(desk, address.person(name), "first") for name in roles}
    known_agents = await desk.store.scan(agents.everyone)
    names = {agent.name for agent in known_agents} | {agent.name for agent in declared.agents}
    renewed = {name.casefold(): _new_token(desk, address.agent(name), "reset") for name in names}

    def plan(conn: sa.Connection) -> tuple[list[Planned], list[Planned], list[PlannedSchedule], list[PlannedBinding]]:
        sources = agents.sources(conn)
        known = [Known(agent, sources[agent.name]) for agent in agents.everyone(conn)]
        take = asked.take == FILE
        return (
            plan_agents(declared.agents, known, take_file=take),
            plan_people(roles, people.everyone(conn), take_file=take),
            declared_schedules.plan(conn, desk, declared.schedules, take_file=take, reset=asked.reset),
            declared_bindings.plan(conn, desk.ids, declared.bindings, take_file=take, reset=asked.reset),
        )

    def body(conn: sa.Connection) -> Applied:
        page = Page(conn, to_ms(now))
        for_agents, for_people, for_schedules, for_bindings = plan(conn)
        for planned in for_agents:
            if planned.agent is not None and planned.step in (Step.ADD, Step.CHANGE):
                kept = agents.put(conn, planned.agent, source=FILE, at_ms=page.at_ms, changed_by=str(caller.address))
                page.tell(NewsKind.AGENT_CHANGED, agent=kept.name, version=kept.version, by=str(caller.address))
        for planned in for_people:
            if planned.person is None:
                continue
            if planned.step is Step.ADD:
                people.add(conn, planned.person, at_ms=page.at_ms)
                token, _, token_hash = made[planned.name]
                tokens.add(conn, token, token_hash)
            elif planned.step is Step.CHANGE:
                people.set_role(conn, planned.person.name, planned.person.role)
        cancelled, cleared, tokens_given = NOTHING_CANCELLED, 0, dict[str, str]()
        if asked.reset:
            cancelled = _stop_all(page, by=str(caller.address))
            cleared = runs.clear(conn)
            declared_schedules.clear(page, caller)
            for agent in agents.everyone(conn):
                tokens.revoke_all(conn, str(address.agent(agent.name)), at_ms=page.at_ms)
                if (new := renewed.get(agent.name.casefold())) is not None:
                    tokens.add(conn, replace(new[0], principal=address.agent(agent.name)), new[2])
                    tokens_given[str(address.agent(agent.name))] = new[1]
        declared_schedules.carry_out(page, desk, for_schedules, caller)
        declared_bindings.carry_out(page, for_bindings, reset=asked.reset)
        page.close()
        return Applied(for_agents, for_people, for_schedules, for_bindings, cancelled, cleared, tokens_given)

    cleared, tokens_given = 0, dict[str, str]()
    if asked.dry_run:
        for_agents, for_people, for_schedules, for_bindings = await desk.store.scan(plan)
    else:
        applied = await desk.store.write(body, point="apply", then=partial(_tell_engine, desk))
        for_agents, for_people, for_schedules = applied.agents, applied.people, applied.schedules
        for_bindings = applied.bindings
        cleared, tokens_given = applied.cleared, applied.tokens
        for planned in for_agents:
            if planned.step is Step.ADD:
                await asyncio.to_thread(ensure_home, desk.home, planned.name)
    added = [planned.name for planned in for_people if planned.step is Step.ADD]
    return ConfigApplied(
        dry_run=asked.dry_run,
        agents=[_planned_form(planned) for planned in for_agents],
        people=[_planned_form(planned) for planned in for_people],
        schedules=[_planned_form(each.planned) for each in for_schedules],
        bindings=[_planned_form(each.planned) for each in for_bindings],
        not_yet=[],
        tokens=msgspec.UNSET if asked.dry_run else {name: made[name][1] for name in added} | tokens_given,
        cleared_runs=msgspec.UNSET if asked.dry_run else cleared,
    )


def _check_runners(desk: Desk, declared: Sequence[Agent]) -> None:
    """Check runner names here: those of plugins are known only once these are loaded, not when the file is parsed."""
    known = runners_known(desk)
    for agent in declared:
        if agent.runner not in known:
            raise Invalid(
                f"agents.{agent.name}.runner is '{agent.runner[:64]}', and there is no such runner",
                because=f"the runners are {', '.join(sorted(known))}",
                try_this="name one of these, or look at `retinue plugin list` for the plug-in that brings it",
                code="agent.runner-unknown",
            )


class Applied(Struct, frozen=True):
    agents: list[Planned]
    people: list[Planned]
    schedules: list[PlannedSchedule]
    bindings: list[PlannedBinding]
    cancelled: Cancelled
    cleared: int
    tokens: dict[str, str]


def _stop_all(page: Page, *, by: str) -> Cancelled:
    """Cancel every open run. Waiting envelopes stay and are processed by the agents that exist afterwards."""
    done = [cancel_in(page, session, by=by, why="the house was reset") for session in runs.open_sessions(page.conn)]
    return Cancelled(
        runs=tuple(run for each in done for run in each.runs),
        lanes=tuple(lane for each in done for lane in each.lanes),
        cleared=0,
        wakes=tuple(wake for each in done for wake in each.wakes),
    )


async def show_export(desk: Desk, caller: Principal, asked: Nothing) -> ConfigExported:
    """Export agents and people as a settings file, for backup or for another instance. It has no tokens."""
    from retinue.config.declarations_export import export

    found = await desk.store.scan(lambda conn: (agents.everyone(conn), people.everyone(conn)))
    return ConfigExported(export(*found))


def _new_token(desk: Desk, whose: Address, label: str) -> tuple[Token, str, str]:
    return new_token(desk, whose, TokenKind.TOKEN, label=label, now=desk.clock.now())


def _tell_engine(desk: Desk, done: Applied | None) -> None:
    if done is None:
        return
    desk.engine.cancelled(done.cancelled)
    for planned in done.agents:
        if planned.agent is not None and planned.step in (Step.ADD, Step.CHANGE):
            desk.engine.agent_changed(planned.agent.name, planned.agent.concurrency)


def _planned_form(planned: Planned) -> StepPlanned:
    return StepPlanned(
        name=planned.name,
        step=planned.step,
        because=planned.because,
        changed={name: ValueChanged(_plain(was), _plain(is_)) for name, (was, is_) in planned.changed.items()},
    )


def _changes(keeper: Keeper, changes: tuple[Change, ...]) -> ConfigChanged:
    return ConfigChanged(
        changes=list(changes),
        waiting_for_a_restart=[change.path for change in keeper.waiting],
        hash=keeper.current.hash,
    )


def _plain(value: Any) -> Any:
    match value:
        case Secret():
            return "(secret)"
        case dict():
            return {str(key): _plain(part) for key, part in cast("dict[Any, Any]", value).items()}
        case list() | tuple():
            return [_plain(part) for part in cast("Sequence[Any]", value)]
        case Path() | ZoneInfo():
            return str(value)
        case Enum():
            return value.value
        case _:
            return value


OPERATIONS = (
    Operation(
        name="config.show",
        summary="Show the settings as they are in use.",
        parameters=Nothing,
        handler=show_config,
        result=ConfigShown,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="config.check",
        summary="Say what is wrong with a settings file.",
        parameters=Check,
        handler=check,
        result=ConfigChecked,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="config.patch",
        summary="Change the settings file, its comments kept.",
        parameters=Patch,
        handler=patch,
        result=ConfigChanged,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
    Operation(
        name="config.reload",
        summary="Read the settings file again.",
        parameters=Nothing,
        handler=read_again,
        result=ConfigChanged,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
    Operation(
        name="config.apply",
        summary="Make the staff what the settings file declares.",
        parameters=Apply,
        handler=apply,
        result=ConfigApplied,
        permission=PermissionLevel.BOSS,
        effect=True,
        shown_once=frozenset({"tokens"}),
    ),
    Operation(
        name="config.export",
        summary="Write the staff down as a settings file, without secrets.",
        parameters=Nothing,
        handler=show_export,
        result=ConfigExported,
        permission=PermissionLevel.PRIVILEGED,
    ),
)
