"""Checks in a simulation that every occurrence of every schedule is recorded.

`schedule_oracle` computes when schedules are due. The database triggers of this module record which
occurrences the server creates, releases, skips and removes in each commit. The two must agree. Each
occurrence at which a schedule was enabled must have run once, or been skipped with a reason. There
must be no other occurrences.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from retinue.domain.address import AddressKind
from retinue.domain.ids import short_id
from retinue.domain.schedule import LATENESS_S_MAX, OCCURRENCES_KEPT_MAX, SKIPS_COUNTED_MAX, OnceTrigger, Schedule
from retinue.domain.times import from_ms, to_ms
from retinue.store.schedules.schedules import DELETED_KIND, NEVER_AGAIN, ONCE_IS_OVER
from retinue.testing.schedule_oracle import list_occurrences
from retinue.testing.simulated_server import SimulatedDisk, SimulatedServer

LATE_MS_MAX = (LATENESS_S_MAX + 1) * 1000
EDIT_COMMITS = frozenset({"setup", "schedule", "staff"})
"""Commits in which a person or an agent sets, changes or deletes schedules. In all other commits,
the server does this.
"""

SCHEDULE_CHANGES = ("schedule", "slot")
"""Prefixes of the names of the changes that `ScheduleChecker` checks."""

_OPEN = ("waiting", "working")
_ALLOWED_CHANGES = {("waiting", "working"), ("waiting", "skipped"), ("working", "ran"), ("working", "failed")}
_SUCCESSFUL_OUTCOMES = ("answered", "delivered", "noted")
_OCCURRENCE = (
    "'seq', {0}.seq, 'by', {0}.made_by, 'at', {0}.occurs_ms, 'state', {0}.state, 'until', {0}.until_ms,"
    " 'number', {0}.skipped_count, 'because', {0}.because, 'envelope', {0}.envelope"
)
_SCHEDULE = "json_object('body', new.body, 'enabled', new.enabled, 'zone', new.zone, 'because', new.because)"

_WATCHED_CHANGES = (
    ("schedule", "INSERT ON schedules", "new.id", _SCHEDULE, "1"),
    ("schedule", "UPDATE ON schedules", "new.id", _SCHEDULE, f"new.kind <> '{DELETED_KIND}'"),
    (
        "schedule.gone",
        "UPDATE ON schedules",
        "new.id",
        "NULL",
        f"new.kind = '{DELETED_KIND}' AND old.kind <> '{DELETED_KIND}'",
    ),
    ("schedule.gone", "DELETE ON schedules", "old.id", "NULL", f"old.kind <> '{DELETED_KIND}'"),
    ("slot", "INSERT ON occurrences", "new.schedule", f"json_object({_OCCURRENCE.format('new')})", "1"),
    (
        "slot.changed",
        "UPDATE ON occurrences",
        "new.schedule",
        f"json_object({_OCCURRENCE.format('new')}, 'was', old.state)",
        "old.state <> new.state",
    ),
    ("slot.gone", "DELETE ON occurrences", "old.schedule", f"json_object({_OCCURRENCE.format('old')})", "1"),
    ("slot.mail", "INSERT ON envelopes", "new.id", "new.source", "new.source LIKE 'schedule:%'"),
)

_decode = msgspec.json.Decoder(Schedule).decode


def install_schedule_triggers(disk: SimulatedDisk) -> None:
    """Create database triggers that record changes of schedules, in the same table as the other changes."""
    for number, (what, event, id_, value, when) in enumerate(_WATCHED_CHANGES):
        disk.raw_connection.execute(
            f"CREATE TEMP TRIGGER keep_time_{number} AFTER {event} WHEN {when} BEGIN"
            f" INSERT INTO changes (what, id, a) VALUES ('{what}', {id_}, {value}); END"
        )


@dataclass(slots=True)
class ScheduleAccount:
    """The occurrences that the checker expects of one schedule, by the current rule of the schedule."""

    schedule: Schedule
    zone: ZoneInfo
    enabled: bool
    accounted_until_ms: (
        int  # every occurrence up to this moment is accounted for: it is open, has ended, or was skipped
    )
    # occurrences that a change of the schedule must record as skipped, in the same commit
    unrecorded_skips: list[int] = field(default_factory=list[int])
    open_occurrences: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    last_released_ms: int = 0  # the last timed occurrence that was released
    newest_seq: int = 0
    server: SimulatedServer | None = None  # the server that created the waiting occurrence

    def list_due(self, until_ms: int) -> list[int]:
        return list_occurrences(self.schedule.when, self.zone, self.accounted_until_ms, until_ms)

    def list_timed(self) -> list[dict[str, Any]]:
        return [occurrence for occurrence in self.open_occurrences.values() if occurrence["by"] == "clock"]


@dataclass(slots=True)
class ScheduleChecker:
    """Follows every schedule from commit to commit, and reports every violation of the rule of a schedule."""

    disk: SimulatedDisk
    report: Callable[[str, str], None]
    trace: Callable[..., None]
    occurrence_counts: Counter[str] = field(default_factory=Counter[str])  # what happened to the occurrences
    _accounts: dict[str, ScheduleAccount] = field(default_factory=dict[str, ScheduleAccount])
    _gates_opened: Counter[str] = field(
        default_factory=Counter[str]
    )  # how often each gate opened without a release since
    _changed: set[str] = field(default_factory=set[str])
    _removed: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])
    _new_envelopes: dict[str, str] = field(default_factory=dict[str, str])  # new envelopes of schedules, by id
    _deleted: dict[str, ScheduleAccount] = field(default_factory=dict[str, ScheduleAccount])
    _ran: set[str] = field(default_factory=set[str])

    def record_gate_opened(self, schedule: str) -> None:
        self._gates_opened[schedule] += 1

    def check_change(self, what: str, id_: str, value: Any, server: SimulatedServer, point: str, now_ms: int) -> None:
        """Check a row of a schedule or an occurrence that a commit changed. Reports a violation to the simulation."""
        match what:
            case "schedule":
                self._check_definition(id_, json.loads(value), point, now_ms)
            case "schedule.gone":
                account = self._accounts.pop(id_, None)
                if account is not None:
                    self._deleted[id_] = account
            case "slot.mail":
                self._new_envelopes[id_] = value.removeprefix("schedule:")
            case "slot" | "slot.changed" | "slot.gone":
                account, slot = self._accounts.get(id_), json.loads(value)
                if account is None:
                    return self.report("occurrences", f"an occurrence of the unknown schedule {short_id(id_)}")
                self._changed.add(id_)
                match what:
                    case "slot":
                        self._check_created(id_, account, slot, now_ms)
                        account.server = server
                    case "slot.changed":
                        self._check_state_change(id_, account, slot, now_ms)
                    case _:
                        self._removed.append((id_, slot))
                        account.open_occurrences.pop(slot["seq"], None)
                        if slot["by"] == "clock" and account.accounted_until_ms == slot["at"]:
                            account.accounted_until_ms = now_ms  # nothing came before it, and it may be created again
            case _:
                pass
        return None

    # --- definitions ---

    def _check_definition(self, id_: str, row: dict[str, Any], point: str, now_ms: int) -> None:
        self._changed.add(id_)
        schedule, zone, enabled = _decode(row["body"]), ZoneInfo(row["zone"]), bool(row["enabled"])
        account = self._accounts.get(id_)
        if account is None:
            self._accounts[id_] = ScheduleAccount(schedule, zone, enabled, accounted_until_ms=now_ms)
            self.trace("  schedule {} is {}, {}", short_id(id_), schedule.when, zone.key)
            return
        if (account.schedule, account.zone, account.enabled) == (schedule, zone, enabled):
            return
        if account.enabled:
            account.unrecorded_skips += account.list_due(now_ms)
            if not enabled and point not in EDIT_COMMITS:
                self._check_disabled(id_, account, row["because"], now_ms)
        self.trace("  schedule {} is enabled: {}, {}", short_id(id_), enabled, row["because"])
        account.schedule, account.zone, account.enabled, account.accounted_until_ms = schedule, zone, enabled, now_ms

    def _check_disabled(self, id_: str, account: ScheduleAccount, because: str, now_ms: int) -> None:
        """Check that the server disables a schedule only if it cannot occur again or its recipient does not exist."""
        schedule = account.schedule
        if because in (ONCE_IS_OVER, NEVER_AGAIN):
            over = isinstance(schedule.when, OnceTrigger) and to_ms(schedule.when.at) <= max(
                now_ms, account.accounted_until_ms
            )
            if not over:
                self.report("occurrences", f"{short_id(id_)} was disabled, but can occur again: {schedule.when}")
            return
        names = {each.name for each in (schedule.to, schedule.owner) if each.kind is AddressKind.AGENT}
        here = [self._fetch_one("SELECT removed_ms FROM agents WHERE name = ?", name) for name in names]
        deleted = schedule.to.session and self._fetch_one(
            "SELECT deleted_ms FROM sessions WHERE id = ?", schedule.to.session
        )
        if all(row == (None,) for row in here) and not (deleted and deleted[0]):
            self.report("occurrences", f"{short_id(id_)} was disabled, but its recipient exists: {because}")

    # --- occurrences ---

    def _check_created(self, id_: str, account: ScheduleAccount, occurrence: dict[str, Any], now_ms: int) -> None:
        account.newest_seq = occurrence["seq"]
        what = f"{short_id(id_)} of {_format_ms(occurrence['at'])}"
        if occurrence["state"] == "skipped":
            self._check_skipped(what, account, occurrence, now_ms)
            return
        self.trace("  occurrence {} waits, by {}", what, occurrence["by"])
        account.open_occurrences[occurrence["seq"]] = occurrence
        if occurrence["by"] != "clock":
            return
        if not account.enabled:
            self.report("armed", f"the occurrence {what} is created, but its schedule is disabled")
        if occurrence["at"] <= now_ms:
            self.report("occurrences", f"the occurrence {what} is created after its time")
        owed = account.list_due(occurrence["at"])
        if owed != [occurrence["at"]]:
            because = "but it is none" if occurrence["at"] not in owed else f"but {len(owed) - 1} before it are missing"
            self.report("occurrences", f"the occurrence {what} is created next, {because}")
        account.accounted_until_ms = occurrence["at"]

    def _check_skipped(self, what: str, account: ScheduleAccount, occurrence: dict[str, Any], now_ms: int) -> None:
        """Check a row that represents all skipped occurrences from its own time up to, but not including, `until`."""
        self._count_occurrence(occurrence)
        if not occurrence["because"]:
            self.report("occurrences", f"the occurrence {what} is skipped without a reason")
        if occurrence["by"] != "clock":
            return
        self.trace(
            "  occurrences {} up to {} are skipped: {}", what, _format_ms(occurrence["until"]), occurrence["because"]
        )
        owed = account.unrecorded_skips or account.list_due(occurrence["until"] - 1)
        number = len(owed) if len(owed) <= SKIPS_COUNTED_MAX else occurrence["number"]
        if not owed or owed[0] != occurrence["at"] or occurrence["number"] != number:
            others = f"{len(owed)} from {_format_ms(owed[0])}" if owed else "none"
            self.report(
                "occurrences", f"{occurrence['number']} occurrences from {what} are skipped, but there were {others}"
            )
        if owed and owed[-1] > now_ms:
            self.report("occurrences", f"the occurrences {what} are skipped before their time")
        if account.unrecorded_skips:
            account.unrecorded_skips = []
        else:
            account.accounted_until_ms = max(account.accounted_until_ms, occurrence["until"] - 1)

    def _check_state_change(self, id_: str, account: ScheduleAccount, occurrence: dict[str, Any], now_ms: int) -> None:
        what = f"{short_id(id_)} of {_format_ms(occurrence['at'])}"
        was, state = occurrence["was"], occurrence["state"]
        self.trace("  occurrence {} {} -> {} {}", what, was, state, occurrence["because"])
        if (was, state) not in _ALLOWED_CHANGES:
            self.report("status", f"the occurrence {what} went from {was} to {state}")
        if state == "working":
            self._check_released(id_, what, account, occurrence, now_ms)
            account.open_occurrences[occurrence["seq"]] = occurrence
            return
        account.open_occurrences.pop(occurrence["seq"], None)
        self._count_occurrence(occurrence)
        if state == "ran":
            self._ran.add(id_)
            outcome = self._fetch_one("SELECT outcome FROM outcomes WHERE envelope = ?", occurrence["envelope"])
            if outcome is None or outcome[0] not in _SUCCESSFUL_OUTCOMES:
                self.report("occurrences", f"the occurrence {what} ran, and its envelope is {outcome}")
        elif not occurrence["because"]:
            self.report("occurrences", f"the occurrence {what} is {state} without a reason")

    def _check_released(
        self, id_: str, what: str, account: ScheduleAccount, occurrence: dict[str, Any], now_ms: int
    ) -> None:
        others = [
            each
            for seq, each in account.open_occurrences.items()
            if seq != occurrence["seq"] and each["state"] == "working"
        ]
        if others and occurrence["by"] != "force":
            self.report(
                "doubled", f"the occurrence {what} is released while that of {_format_ms(others[0]['at'])} is running"
            )
        if account.schedule.gate is not None and occurrence["by"] != "force":
            if self._gates_opened[id_] < 1:
                self.report("gates", f"the occurrence {what} is released, but its gate has not opened")
            self._gates_opened[id_] -= 1
        if occurrence["by"] != "clock":
            return
        if occurrence["at"] <= account.last_released_ms:
            self.report(
                "doubled", f"the occurrence {what} is released after that of {_format_ms(account.last_released_ms)}"
            )
        account.last_released_ms = occurrence["at"]
        if occurrence["at"] > now_ms:
            self.report("occurrences", f"the occurrence {what} is released before its time, at {_format_ms(now_ms)}")
        if now_ms - occurrence["at"] > LATE_MS_MAX and not account.schedule.runs_late and account.schedule.gate is None:
            self.report("occurrences", f"the occurrence {what} was missed and must not run late, but is released")

    def _count_occurrence(self, occurrence: dict[str, Any]) -> None:
        kind = (
            occurrence["because"].partition(":")[0]
            if occurrence["state"] == "skipped" and ":" in occurrence["because"]
            else ""
        )
        self.occurrence_counts[
            f"{occurrence['state']} {kind}".strip() if occurrence["by"] == "clock" else f"{occurrence['state']} by hand"
        ] += 1

    # --- after a commit ---

    def check_commit(self, point: str, now_ms: int) -> None:
        for id_, slot in self._removed:
            self._check_removed(id_, slot, now_ms)
        # A file that changes a schedule and disables it creates an occurrence and removes it, in one commit.
        taken_back = {slot["envelope"] for _, slot in self._removed}
        for envelope, id_ in self._new_envelopes.items():
            if id_ not in self._accounts or envelope in taken_back:
                continue
            if not any(slot["envelope"] == envelope for slot in self._accounts[id_].open_occurrences.values()):
                self.report(
                    "occurrences", f"the envelope {short_id(envelope)} of {short_id(id_)} is no occurrence of it"
                )
        for id_, account in self._deleted.items():
            if point not in EDIT_COMMITS and not (account.schedule.delete_after_run and id_ in self._ran):
                self.report("occurrences", f"{short_id(id_)} is deleted, but has not run")
        for id_ in self._changed & self._accounts.keys():
            self._check_armed(id_, self._accounts[id_])
        for each in (self._removed, self._new_envelopes, self._deleted, self._changed, self._ran):
            each.clear()

    def _check_removed(self, id_: str, occurrence: dict[str, Any], now_ms: int) -> None:
        account = self._accounts.get(id_)
        if account is None:
            return  # removed together with its schedule and the whole history
        what = f"{short_id(id_)} of {_format_ms(occurrence['at'])}"
        if occurrence["state"] not in _OPEN:
            if occurrence["seq"] > account.newest_seq - OCCURRENCES_KEPT_MAX:
                self.report("occurrences", f"the result of {what} was deleted too early")
            return
        if occurrence["state"] != "waiting" or occurrence["at"] <= now_ms:
            self.report(
                "occurrences", f"the occurrence {what} was {occurrence['state']}, and was removed without a record"
            )

    def _check_armed(self, id_: str, account: ScheduleAccount) -> None:
        found = account.list_timed()
        if account.unrecorded_skips:
            self.report(
                "occurrences",
                f"{len(account.unrecorded_skips)} occurrences of {short_id(id_)} before a change are not recorded",
            )
        if account.enabled and len(found) != 1:
            self.report("armed", f"{short_id(id_)} is enabled, but has {len(found)} open occurrences")
        if not account.enabled and any(slot["state"] == "waiting" for slot in found):
            self.report("armed", f"{short_id(id_)} is disabled, but has a waiting occurrence")

    # --- regularly, and at the end ---

    def list_overdue(self, server: SimulatedServer) -> list[str]:
        """Return the schedules with a due occurrence that `server` has created, but not released yet."""
        sql = (
            "SELECT schedule FROM occurrences"
            " WHERE state = 'waiting' AND clock_ms <= (SELECT latest_ms FROM counters) ORDER BY schedule"
        )
        found = [id_ for (id_,) in self.disk.raw_connection.execute(sql)]
        return [id_ for id_ in found if id_ in self._accounts and self._accounts[id_].server is server]

    def check_final_state(self, now_ms: int) -> None:
        """Check that every occurrence of an enabled schedule up to now is recorded or open."""
        for id_, account in self._accounts.items():
            self._check_armed(id_, account)
            if account.enabled and not account.open_occurrences and account.list_due(now_ms):
                self.report("occurrences", f"occurrences of {short_id(id_)} were due, but are not recorded")

    def _fetch_one(self, sql: str, *values: Any) -> tuple[Any, ...] | None:
        return self.disk.raw_connection.execute(sql, values).fetchone()


def _format_ms(ms: int) -> str:
    return from_ms(ms).isoformat(sep=" ", timespec="milliseconds")[:-6]
