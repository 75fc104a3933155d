"""Plans and applies the `[bindings.*]` tables of the settings file, for `config.apply`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from retinue.agents.apply_plan import FILE_SOURCE, ApplyAction, PlannedChange
from retinue.domain.binding import Binding, BindingMatch, PeerKind
from retinue.domain.ports import IdSource
from retinue.store.channels import bindings
from retinue.store.core.transaction import Transaction


class PlannedBinding(Struct, frozen=True):
    planned: PlannedChange
    binding: Binding | None = None
    replaces: Binding | None = None


def plan_bindings(
    conn: sa.Connection, ids: IdSource, declared: Mapping[str, Mapping[str, Any]], *, overwrite: bool, reset: bool
) -> list[PlannedBinding]:
    """Plan the changes that make the stored bindings match the settings file.

    The changes are in the order of the file. Bindings that an earlier version of the file declared, but
    this one does not, come last and are not changed.

    A binding in the file and a stored binding are the same if they match the same channels. The names of
    bindings in the file are not stored.
    """
    here = {} if reset else {each.match: each for each in bindings.list_all(conn)}
    planned = [_plan_binding(ids, name, table, here, overwrite=overwrite) for name, table in declared.items()]
    because = "it is not in the file, so it is not changed"
    left = [each for each in here.values() if each.created_by == FILE_SOURCE]
    return [*planned, *(PlannedBinding(PlannedChange(ApplyAction.UNDECLARED, each.id[:8], because)) for each in left)]


def _plan_binding(
    ids: IdSource, name: str, table: Mapping[str, Any], existing: dict[BindingMatch, Binding], *, overwrite: bool
) -> PlannedBinding:
    wanted = Binding(
        id=ids.new(),
        agent=table["agent"],
        extra_agents=tuple(table.get("extra_agents") or ()),
        match=build_match(table),
        created_by=FILE_SOURCE,
    )
    was = existing.pop(wanted.match, None)
    if was is None:
        return PlannedBinding(PlannedChange(ApplyAction.ADD, name, "no binding exists for this channel"), wanted)
    if _agent_keys(was) == _agent_keys(wanted):
        return PlannedBinding(PlannedChange(ApplyAction.KEEP, name, "it is unchanged"))
    changed: dict[str, tuple[Any, Any]] = {"agents": (" ".join(was.agents), " ".join(wanted.agents))}
    if was.created_by != FILE_SOURCE and not overwrite:
        because = f"it was last changed by {was.created_by or 'someone'}; use `--overwrite` to overwrite that change"
        return PlannedBinding(PlannedChange(ApplyAction.DRIFT, name, because, changes=changed))
    return PlannedBinding(PlannedChange(ApplyAction.CHANGE, name, "the file differs", changes=changed), wanted, was)


def build_match(table: Mapping[str, Any]) -> BindingMatch:
    kind = table.get("peer_kind")
    return BindingMatch(
        connector=table["connector"],
        account=table.get("account") or "",
        peer_kind=PeerKind(kind) if kind else None,
        peer=table.get("peer") or "",
        parent=table.get("parent") or "",
        guild=table.get("guild") or "",
        team=table.get("team") or "",
    )


def _agent_keys(binding: Binding) -> list[str]:
    return [name.casefold() for name in binding.agents]


def apply_bindings(tx: Transaction, plan: list[PlannedBinding], *, reset: bool) -> None:
    """Apply the planned changes to bindings, in the commit that also stores the agents."""
    if reset:
        bindings.remove_all(tx.conn)
    for each in plan:
        if each.replaces is not None:
            bindings.remove(tx.conn, each.replaces.id)
        if each.binding is not None:
            bindings.add(tx.conn, each.binding, at_ms=tx.at_ms)
