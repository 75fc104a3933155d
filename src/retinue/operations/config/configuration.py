"""Operations that show, check, change, reload, apply and export the settings file."""

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

from retinue.agents.agent_directory import ensure_agent_directory
from retinue.agents.apply_plan import FILE_SOURCE, ApplyAction, PlannedChange, StoredAgent, plan_agents, plan_people
from retinue.config import SecretReference, SettingChange, examine_configuration, load_configuration
from retinue.domain import address
from retinue.domain.address import Address
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.event import EventKind
from retinue.domain.person import Role
from retinue.domain.principal import Principal
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.domain.token import Token, TokenKind
from retinue.engine.run_cancel import NOTHING_CANCELLED, CancelResult, cancel_runs_in
from retinue.operations.agent.agents import known_runners
from retinue.operations.base import EmptyRequest, Operation, Services
from retinue.operations.config.errors import RunnerUnknown, SettingsTextTooLarge
from retinue.operations.config.pending_restarts import save_pending_restart
from retinue.operations.config_holder import ConfigHolder
from retinue.operations.connector import declared_bindings
from retinue.operations.connector.declared_bindings import PlannedBinding
from retinue.operations.person.tokens import build_token
from retinue.operations.schedule import declared_schedules
from retinue.operations.schedule.declared_schedules import PlannedSchedule
from retinue.store.agents import agents
from retinue.store.core.transaction import Transaction
from retinue.store.people import people, tokens
from retinue.store.runs import runs
from retinue.store.sessions import sessions

FILE_BYTES_MAX = 1_000_000


class ConfigCheckRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Check the text of a settings file. Without `text`, the current settings file is checked."""

    text: str | None = None


class ConfigPatchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Change the settings file by merging `changes` into it.

    Tables are merged recursively. In a list of tables, tables with the same id or name are merged. The
    value null removes a key.
    """

    changes: dict[str, Any]
    expected_hash: str


class ConfigApplyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Apply the agents, people, schedules and bindings of the settings file.

    `overwrite` also overwrites changes that were made outside the file since it was last applied. With
    `dry_run`, the response contains the plan, and nothing is stored.

    `reset` also cancels and deletes every run, removes all other schedules and bindings, and replaces
    the tokens of agents.
    """

    dry_run: bool = False
    overwrite: bool = False
    reset: bool = False


class ConfigDetails(msgspec.Struct, frozen=True):
    file: str
    hash: str
    files: list[str]
    settings: dict[str, Any]
    default_agent: str | None
    pending_restart: list[str]


class ConfigChecked(msgspec.Struct, frozen=True):
    ok: bool
    faults: list[str]
    hash: str


class ConfigChanged(msgspec.Struct, frozen=True):
    changes: list[SettingChange]
    pending_restart: list[str]
    hash: str


class ValueChange(msgspec.Struct, frozen=True, rename={"was": "from", "becomes": "to"}):
    was: Any
    becomes: Any


class ApplyStep(msgspec.Struct, frozen=True):
    """What `config.apply` does (or, in a dry run, would do) to one agent, person, schedule or binding."""

    name: str
    step: ApplyAction
    because: str
    changed: dict[str, ValueChange]


class ConfigApplied(msgspec.Struct, frozen=True):
    """Result of `config.apply`. `tokens` has the new tokens of added people and, after a reset, of agents.

    The tokens are shown only in this response. A dry run creates no tokens.
    """

    dry_run: bool
    agents: list[ApplyStep]
    people: list[ApplyStep]
    schedules: list[ApplyStep]
    bindings: list[ApplyStep]
    tokens: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    cleared_runs: int | msgspec.UnsetType = msgspec.UNSET
    shown_once: list[str] | msgspec.UnsetType = msgspec.UNSET


class ConfigExported(msgspec.Struct, frozen=True):
    text: str


async def show_config(services: Services, caller: Principal, request: EmptyRequest) -> ConfigDetails:
    holder = services.require_config_holder()
    current = holder.current
    return ConfigDetails(
        file=str(current.file),
        hash=current.hash,
        files=[str(file) for file in current.files],
        settings=_to_plain(asdict(current.settings) | {"store": "(not shown)"}),
        default_agent=current.default_agent,
        pending_restart=[change.path for change in holder.pending_changes],
    )


async def check_config(services: Services, caller: Principal, request: ConfigCheckRequest) -> ConfigChecked:
    holder = services.require_config_holder()
    if request.text is not None and len(request.text.encode()) > FILE_BYTES_MAX:
        raise SettingsTextTooLarge(bytes_max=FILE_BYTES_MAX)
    examined = await asyncio.to_thread(examine_configuration, holder.environment, text=request.text)
    return ConfigChecked(
        ok=not examined.faults,
        faults=[str(fault) for fault in examined.faults],
        hash=examined.configuration.hash,
    )


async def patch_config(services: Services, caller: Principal, request: ConfigPatchRequest) -> ConfigChanged:
    """Change the settings file, keep its comments, and apply the changes that need no restart."""
    from retinue.config.file_writer import patch_settings_file  # lazy: imports tomlkit, which most servers never need

    holder = services.require_config_holder()
    await asyncio.to_thread(
        patch_settings_file, holder.environment, request.changes, expected_hash=request.expected_hash
    )
    changes = holder.reload()
    if holder.pending_changes:
        for session in await services.store.scan(partial(sessions.list_recent, limit=1, seen_by=caller)):
            paths = [change.path for change in holder.pending_changes]
            await asyncio.to_thread(
                save_pending_restart, services.data_dir, paths, agent=session.agent, session=session.id
            )
    return _to_config_changed(holder, changes)


async def reload_config(services: Services, caller: Principal, request: EmptyRequest) -> ConfigChanged:
    holder = services.require_config_holder()
    return _to_config_changed(holder, holder.reload())


async def apply_config(services: Services, caller: Principal, request: ConfigApplyRequest) -> ConfigApplied:
    """Apply the agents, people, schedules and bindings of the file, in one commit."""
    holder = services.require_config_holder()
    declared = (await asyncio.to_thread(load_configuration, holder.environment)).declarations
    _check_runners(services, declared.agents)
    roles = {name: Role(table["role"]) for name, table in declared.people.items()}
    now = services.clock.now()
    made = {name: _build_token(services, address.person_address(name), "first") for name in roles}
    known_agents = await services.store.scan(agents.list_all)
    names = {agent.name for agent in known_agents} | {agent.name for agent in declared.agents}
    renewed = {name.casefold(): _build_token(services, address.agent_address(name), "reset") for name in names}

    def plan(
        conn: sa.Connection,
    ) -> tuple[list[PlannedChange], list[PlannedChange], list[PlannedSchedule], list[PlannedBinding]]:
        sources = agents.get_sources(conn)
        known = [StoredAgent(agent, sources[agent.name]) for agent in agents.list_all(conn)]
        return (
            plan_agents(declared.agents, known, prefer_file=request.overwrite),
            plan_people(
                roles,
                people.list_all(conn),
                forgotten=people.list_erased_names(conn),
                prefer_file=request.overwrite,
            ),
            declared_schedules.plan_schedules(
                conn, services, declared.schedules, overwrite=request.overwrite, reset=request.reset
            ),
            declared_bindings.plan_bindings(
                conn, services.ids, declared.bindings, overwrite=request.overwrite, reset=request.reset
            ),
        )

    def body(conn: sa.Connection) -> AppliedPlan:
        tx = Transaction(conn, to_ms(now))
        for_agents, for_people, for_schedules, for_bindings = plan(conn)
        for planned in for_agents:
            if planned.agent is not None and planned.action in (ApplyAction.ADD, ApplyAction.CHANGE):
                kept = agents.upsert(
                    conn, planned.agent, source=FILE_SOURCE, at_ms=tx.at_ms, changed_by=str(caller.address)
                )
                tx.emit(EventKind.AGENT_CHANGED, agent=kept.name, version=kept.version, by=str(caller.address))
        for planned in for_people:
            if planned.person is None:
                continue
            if planned.action is ApplyAction.ADD:
                people.add(conn, planned.person, at_ms=tx.at_ms)
                token, _, token_hash = made[planned.name]
                tokens.add(conn, token, token_hash)
            elif planned.action is ApplyAction.CHANGE:
                people.set_role(conn, planned.person.name, planned.person.role)
        cancelled, cleared, tokens_given = NOTHING_CANCELLED, 0, dict[str, str]()
        if request.reset:
            cancelled = _cancel_all_runs(tx, by=str(caller.address))
            cleared = runs.delete_ended(conn)
            declared_schedules.delete_all_schedules(tx, caller)
            for agent in agents.list_all(conn):
                tokens.revoke_all(conn, str(address.agent_address(agent.name)), at_ms=tx.at_ms)
                if (new := renewed.get(agent.name.casefold())) is not None:
                    tokens.add(conn, replace(new[0], principal=address.agent_address(agent.name)), new[2])
                    tokens_given[str(address.agent_address(agent.name))] = new[1]
        declared_schedules.apply_plan(tx, services, for_schedules, caller)
        declared_bindings.apply_bindings(tx, for_bindings, reset=request.reset)
        tx.close()
        return AppliedPlan(for_agents, for_people, for_schedules, for_bindings, cancelled, cleared, tokens_given)

    cleared, tokens_given = 0, dict[str, str]()
    if request.dry_run:
        for_agents, for_people, for_schedules, for_bindings = await services.store.scan(plan)
    else:
        applied = await services.store.write(body, point="apply", then=partial(_notify_engine, services))
        for_agents, for_people, for_schedules = applied.agents, applied.people, applied.schedules
        for_bindings = applied.bindings
        cleared, tokens_given = applied.cleared, applied.tokens
        for planned in for_agents:
            if planned.action is ApplyAction.ADD:
                await asyncio.to_thread(ensure_agent_directory, services.data_dir, planned.name)
    added = [planned.name for planned in for_people if planned.action is ApplyAction.ADD]
    return ConfigApplied(
        dry_run=request.dry_run,
        agents=[_to_apply_step(planned) for planned in for_agents],
        people=[_to_apply_step(planned) for planned in for_people],
        schedules=[_to_apply_step(each.step) for each in for_schedules],
        bindings=[_to_apply_step(each.planned) for each in for_bindings],
        tokens=msgspec.UNSET if request.dry_run else {name: made[name][1] for name in added} | tokens_given,
        cleared_runs=msgspec.UNSET if request.dry_run else cleared,
    )


def _check_runners(services: Services, agents_declared: Sequence[Agent]) -> None:
    """Raise if an agent in the settings file has a runner that this server does not have.

    This is not checked when the file is parsed, because plugins that provide runners are loaded later.
    """
    known = known_runners(services)
    for agent in agents_declared:
        if agent.runner not in known:
            raise RunnerUnknown(agent.name, agent.runner, known=sorted(known))


class AppliedPlan(Struct, frozen=True):
    agents: list[PlannedChange]
    people: list[PlannedChange]
    schedules: list[PlannedSchedule]
    bindings: list[PlannedBinding]
    cancelled: CancelResult
    cleared: int
    tokens: dict[str, str]


def _cancel_all_runs(tx: Transaction, *, by: str) -> CancelResult:
    """Cancel every open run. Waiting envelopes are kept, and are processed by the agents after the reset."""
    done = [
        cancel_runs_in(tx, session, by=by, reason="the server was reset")
        for session in runs.list_open_sessions(tx.conn)
    ]
    return CancelResult(
        runs=tuple(run for each in done for run in each.runs),
        sessions=tuple(lane for each in done for lane in each.sessions),
        cleared_envelopes=0,
        wakes=tuple(wake for each in done for wake in each.wakes),
    )


async def export_config(services: Services, caller: Principal, request: EmptyRequest) -> ConfigExported:
    """Export agents and people as a settings file, for backup or for another instance. The file has no tokens."""
    from retinue.config.declarations_export import export_declarations

    found = await services.store.scan(lambda conn: (agents.list_all(conn), people.list_all(conn)))
    return ConfigExported(export_declarations(*found))


def _build_token(services: Services, principal: Address, label: str) -> tuple[Token, str, str]:
    return build_token(services, principal, TokenKind.TOKEN, label=label, now=services.clock.now())


def _notify_engine(services: Services, applied: AppliedPlan | None) -> None:
    if applied is None:
        return
    services.engine.stop_workers(applied.cancelled)
    for planned in applied.agents:
        if planned.agent is not None and planned.action in (ApplyAction.ADD, ApplyAction.CHANGE):
            services.engine.agent_changed(planned.agent.name, planned.agent.concurrency)


def _to_apply_step(planned: PlannedChange) -> ApplyStep:
    return ApplyStep(
        name=planned.name,
        step=planned.action,
        because=planned.because,
        changed={name: ValueChange(_to_plain(was), _to_plain(is_)) for name, (was, is_) in planned.changes.items()},
    )


def _to_config_changed(config_holder: ConfigHolder, changes: tuple[SettingChange, ...]) -> ConfigChanged:
    return ConfigChanged(
        changes=list(changes),
        pending_restart=[change.path for change in config_holder.pending_changes],
        hash=config_holder.current.hash,
    )


def _to_plain(value: Any) -> Any:
    match value:
        case SecretReference():
            return "(secret)"
        case dict():
            return {str(key): _to_plain(part) for key, part in cast("dict[Any, Any]", value).items()}
        case list() | tuple():
            return [_to_plain(part) for part in cast("Sequence[Any]", value)]
        case Path() | ZoneInfo():
            return str(value)
        case Enum():
            return value.value
        case _:
            return value


OPERATIONS = (
    Operation(
        name="config.show",
        summary="Show the settings in use.",
        parameters=EmptyRequest,
        handler=show_config,
        result=ConfigDetails,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="config.check",
        summary="Check a settings file.",
        parameters=ConfigCheckRequest,
        handler=check_config,
        result=ConfigChecked,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="config.patch",
        summary="Change the settings file and keep its comments.",
        parameters=ConfigPatchRequest,
        handler=patch_config,
        result=ConfigChanged,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
    Operation(
        name="config.reload",
        summary="Reload the settings file.",
        parameters=EmptyRequest,
        handler=reload_config,
        result=ConfigChanged,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
    Operation(
        name="config.apply",
        summary="Apply the agents, people, schedules and bindings of the settings file.",
        parameters=ConfigApplyRequest,
        handler=apply_config,
        result=ConfigApplied,
        permission=PermissionLevel.BOSS,
        has_effect=True,
        secret_fields=frozenset({"tokens"}),
    ),
    Operation(
        name="config.export",
        summary="Export agents and people as a settings file, without secrets.",
        parameters=EmptyRequest,
        handler=export_config,
        result=ConfigExported,
        permission=PermissionLevel.PRIVILEGED,
    ),
)
