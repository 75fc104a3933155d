"""Plan and apply the `[bindings.*]` tables of the settings file, for `config.apply`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from retinue.agents.apply_plan import FILE, Planned, Step
from retinue.domain.binding import Binding, Match, PeerKind
from retinue.domain.ports import Ids
from retinue.store.channels import bindings
from retinue.store.core.transaction import Page


class PlannedBinding(Struct, frozen=True):
    planned: Planned
    binding: Binding | None = None
    replaces: Binding | None = None


def plan(
    conn: sa.Connection, ids: Ids, declared: Mapping[str, Mapping[str, Any]], *, take_file: bool, reset: bool
) -> list[PlannedBinding]:
    """Return the steps in the order of the file, then bindings that an earlier file set and this one omits.

    Bindings are compared by what they match. Their names in the file are not stored.
    """
    here = {} if reset else {each.match: each for each in bindings.everything(conn)}
    planned = [_plan(ids, name, table, here, take_file=take_file) for name, table in declared.items()]
    because = "it is not in the file, so it is left as it is"
    left = [each for each in here.values() if each.made_by == FILE]
    return [*planned, *(PlannedBinding(Planned(Step.UNDECLARED, each.id[:8], because)) for each in left)]


def _plan(
    ids: Ids, name: str, table: Mapping[str, Any], here: dict[Match, Binding], *, take_file: bool
) -> PlannedBinding:
    wanted = Binding(
        id=ids.new(), agent=table["agent"], also=tuple(table.get("also") or ()), match=match_of(table), made_by=FILE
    )
    was = here.pop(wanted.match, None)
    if was is None:
        return PlannedBinding(Planned(Step.ADD, name, "nobody is bound to this place"), wanted)
    if _folded(was) == _folded(wanted):
        return PlannedBinding(Planned(Step.KEEP, name, "it is as declared"))
    changed: dict[str, tuple[Any, Any]] = {"agents": (" ".join(was.agents), " ".join(wanted.agents))}
    if was.made_by != FILE and not take_file:
        because = f"it was set by {was.made_by or 'somebody'} since; take the file to overwrite that"
        return PlannedBinding(Planned(Step.DRIFT, name, because, changed=changed))
    return PlannedBinding(Planned(Step.CHANGE, name, "it is declared otherwise", changed=changed), wanted, was)


def match_of(table: Mapping[str, Any]) -> Match:
    kind = table.get("peer_kind")
    return Match(
        connector=table["connector"],
        account=table.get("account") or "",
        peer_kind=PeerKind(kind) if kind else None,
        peer=table.get("peer") or "",
        parent=table.get("parent") or "",
        guild=table.get("guild") or "",
        team=table.get("team") or "",
    )


def _folded(binding: Binding) -> list[str]:
    return [name.casefold() for name in binding.agents]


def carry_out(page: Page, plan: list[PlannedBinding], *, reset: bool) -> None:
    """Perform the plan. It runs in the commit that stores the agents, so the named agents exist."""
    if reset:
        bindings.clear(page.conn)
    for each in plan:
        if each.replaces is not None:
            bindings.remove(page.conn, each.replaces.id)
        if each.binding is not None:
            bindings.add(page.conn, each.binding, at_ms=page.at_ms)
