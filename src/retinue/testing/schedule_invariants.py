"""Checks in a simulation that every occurrence of every schedule is accounted for.

`schedule_oracle` computes when schedules are due. The triggers of this module record which
occurrences the server creates, releases, skips and removes in each commit. The two must agree. Each
occurrence while a schedule was enabled ran once, or was skipped with a reason. Nothing else ran.
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
from retinue.domain.ids import short
from retinue.domain.schedule import HISTORY_MAX, LATE_S_MAX, SKIPS_COUNTED_MAX, Once, Schedule
from retinue.domain.times import from_ms, to_ms
from retinue.store.schedules.schedules import GONE, IS_OVER, NEVER
from retinue.testing.schedule_oracle import slots_between
from retinue.testing.simulated_server import Disk, SimulatedHouse

LATE_MS_MAX = (LATE_S_MAX + 1) * 1000
SET_BY_SOMEONE = frozenset({"setup", "schedule", "staff"})
"""Commits in which someone has set, changed or deleted schedules. In all others the house does so by itself."""

OF_THE_CLOCK = ("schedule", "slot")
"""How the names of changes begin that are for the timekeeper."""

_OPEN = ("waiting", "working")
_MOVES = {("waiting", "working"), ("waiting", "skipped"), ("working", "ran"), ("working", "failed")}
_RAN = ("answered", "delivered", "noted")
_SLOT = (
    "'seq', {0}.seq, 'by', {0}.made_by, 'at', {0}.slot_ms, 'state', {0}.state, 'until', {0}.until_ms,"
    " 'number', {0}.number, 'because', {0}.because, 'envelope', {0}.envelope"
)
_SCHEDULE = "json_object('body', new.body, 'enabled', new.enabled, 'zone', new.zone, 'because', new.because)"

_WATCHED = (
    ("schedule", "INSERT ON schedules", "new.id", _SCHEDULE, "1"),
    ("schedule", "UPDATE ON schedules", "new.id", _SCHEDULE, f"new.kind <> '{GONE}'"),
    ("schedule.gone", "UPDATE ON schedules", "new.id", "NULL", f"new.kind = '{GONE}' AND old.kind <> '{GONE}'"),
    ("schedule.gone", "DELETE ON schedules", "old.id", "NULL", f"old.kind <> '{GONE}'"),
    ("slot", "INSERT ON schedule_slots", "new.schedule", f"json_object({_SLOT.format('new')})", "1"),
    (
        "slot.changed",
        "UPDATE ON schedule_slots",
        "new.schedule",
        f"json_object({_SLOT.format('new')}, 'was', old.state)",
        "old.state <> new.state",
    ),
    ("slot.gone", "DELETE ON schedule_slots", "old.schedule", f"json_object({_SLOT.format('old')})", "1"),
    ("slot.mail", "INSERT ON envelopes", "new.id", "new.source", "new.source LIKE 'schedule:%'"),
)

_decode = msgspec.json.Decoder(Schedule).decode


def keep_time(disk: Disk) -> None:
    """Create triggers that record changes of schedules, in the same table as the other changes."""
    for number, (what, event, id_, value, when) in enumerate(_WATCHED):
        disk.raw.execute(
            f"CREATE TEMP TRIGGER keep_time_{number} AFTER {event} WHEN {when} BEGIN"
            f" INSERT INTO changes (what, id, a) VALUES ('{what}', {id_}, {value}); END"
        )


@dataclass(slots=True)
class Account:
    """The expected occurrences of one schedule, by its current rule."""

    schedule: Schedule
    zone: ZoneInfo
    enabled: bool
    told_ms: int  # every occurrence up to this moment is accounted for: it is open, has ended, or was skipped
    # occurrences that a change of the schedule must record as skipped, in the same commit
    debts: list[int] = field(default_factory=list[int])
    open: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    begun_ms: int = 0  # the last timed occurrence that was released
    newest: int = 0
    house: SimulatedHouse | None = None  # the one that created the waiting occurrence

    def owed(self, until_ms: int) -> list[int]:
        return slots_between(self.schedule.when, self.zone, self.told_ms, until_ms)

    def of_clock(self) -> list[dict[str, Any]]:
        return [slot for slot in self.open.values() if slot["by"] == "clock"]


@dataclass(slots=True)
class Timekeeper:
    """Follows every schedule from commit to commit, and reports what contradicts its rule."""

    disk: Disk
    blame: Callable[[str, str], None]
    note: Callable[..., None]
    slots: Counter[str] = field(default_factory=Counter[str])  # what happened to the occurrences
    _accounts: dict[str, Account] = field(default_factory=dict[str, Account])
    _opened: Counter[str] = field(default_factory=Counter[str])  # how often each gate opened without a release since
    _touched: set[str] = field(default_factory=set[str])
    _taken_back: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])
    _mail: dict[str, str] = field(default_factory=dict[str, str])  # new envelopes of schedules, by id
    _deleted: dict[str, Account] = field(default_factory=dict[str, Account])
    _ran: set[str] = field(default_factory=set[str])

    def gate_opened(self, schedule: str) -> None:
        self._opened[schedule] += 1

    def judge(self, what: str, id_: str, value: Any, house: SimulatedHouse, point: str, now_ms: int) -> None:
        """Check one changed row of a commit."""
        match what:
            case "schedule":
                self._defined(id_, json.loads(value), point, now_ms)
            case "schedule.gone":
                account = self._accounts.pop(id_, None)
                if account is not None:
                    self._deleted[id_] = account
            case "slot.mail":
                self._mail[id_] = value.removeprefix("schedule:")
            case "slot" | "slot.changed" | "slot.gone":
                account, slot = self._accounts.get(id_), json.loads(value)
                if account is None:
                    return self.blame("slots", f"an occurrence of {short(id_)}, of which nobody has heard")
                self._touched.add(id_)
                match what:
                    case "slot":
                        self._made(id_, account, slot, now_ms)
                        account.house = house
                    case "slot.changed":
                        self._moved(id_, account, slot, now_ms)
                    case _:
                        self._taken_back.append((id_, slot))
                        account.open.pop(slot["seq"], None)
                        if slot["by"] == "clock" and account.told_ms == slot["at"]:
                            account.told_ms = now_ms  # nothing came before it, and it may be created again
            case _:
                pass
        return None

    # --- definitions ---

    def _defined(self, id_: str, row: dict[str, Any], point: str, now_ms: int) -> None:
        self._touched.add(id_)
        schedule, zone, enabled = _decode(row["body"]), ZoneInfo(row["zone"]), bool(row["enabled"])
        account = self._accounts.get(id_)
        if account is None:
            self._accounts[id_] = Account(schedule, zone, enabled, told_ms=now_ms)
            self.note("  schedule {} is {}, {}", short(id_), schedule.when, zone.key)
            return
        if (account.schedule, account.zone, account.enabled) == (schedule, zone, enabled):
            return
        if account.enabled:
            account.debts += account.owed(now_ms)
            if not enabled and point not in SET_BY_SOMEONE:
                self._check_stood_down(id_, account, row["because"], now_ms)
        self.note("  schedule {} is enabled: {}, {}", short(id_), enabled, row["because"])
        account.schedule, account.zone, account.enabled, account.told_ms = schedule, zone, enabled, now_ms

    def _check_stood_down(self, id_: str, account: Account, because: str, now_ms: int) -> None:
        """Check that the server disabled a schedule itself only if it cannot occur again or has no recipient."""
        schedule = account.schedule
        if because in (IS_OVER, NEVER):
            over = isinstance(schedule.when, Once) and to_ms(schedule.when.at) <= max(now_ms, account.told_ms)
            if not over:
                self.blame("slots", f"{short(id_)} was disabled as if it never came again: {schedule.when}")
            return
        names = {each.name for each in (schedule.to, schedule.owner) if each.kind is AddressKind.AGENT}
        here = [self._one("SELECT removed_ms FROM agents WHERE name = ?", name) for name in names]
        deleted = schedule.to.session and self._one("SELECT deleted_ms FROM sessions WHERE id = ?", schedule.to.session)
        if all(row == (None,) for row in here) and not (deleted and deleted[0]):
            self.blame("slots", f"{short(id_)} was disabled, and whom it is for is here: {because}")

    # --- occurrences ---

    def _made(self, id_: str, account: Account, slot: dict[str, Any], now_ms: int) -> None:
        account.newest = slot["seq"]
        what = f"{short(id_)} of {_shown(slot['at'])}"
        if slot["state"] == "skipped":
            self._skipped(what, account, slot, now_ms)
            return
        self.note("  slot {} waits, by {}", what, slot["by"])
        account.open[slot["seq"]] = slot
        if slot["by"] != "clock":
            return
        if not account.enabled:
            self.blame("armed", f"the slot {what} is made, and its schedule is disabled")
        if slot["at"] <= now_ms:
            self.blame("slots", f"the slot {what} is made when its time is over")
        owed = account.owed(slot["at"])
        if owed != [slot["at"]]:
            because = "which is none" if slot["at"] not in owed else f"and {len(owed) - 1} before it are left out"
            self.blame("slots", f"the slot {what} is made next, {because}")
        account.told_ms = slot["at"]

    def _skipped(self, what: str, account: Account, slot: dict[str, Any], now_ms: int) -> None:
        """Check one row that represents all skipped occurrences from its own time to before `until`."""
        self._count(slot)
        if not slot["because"]:
            self.blame("slots", f"the slot {what} is skipped, and nobody knows why")
        if slot["by"] != "clock":
            return
        self.note("  slots {} up to {} are skipped: {}", what, _shown(slot["until"]), slot["because"])
        owed = account.debts or account.owed(slot["until"] - 1)
        number = len(owed) if len(owed) <= SKIPS_COUNTED_MAX else slot["number"]
        if not owed or owed[0] != slot["at"] or slot["number"] != number:
            others = f"{len(owed)} from {_shown(owed[0])}" if owed else "none"
            self.blame("slots", f"{slot['number']} slots from {what} are skipped, and there were {others}")
        if owed and owed[-1] > now_ms:
            self.blame("slots", f"the slots {what} are skipped before their time has come")
        if account.debts:
            account.debts = []
        else:
            account.told_ms = max(account.told_ms, slot["until"] - 1)

    def _moved(self, id_: str, account: Account, slot: dict[str, Any], now_ms: int) -> None:
        what = f"{short(id_)} of {_shown(slot['at'])}"
        was, state = slot["was"], slot["state"]
        self.note("  slot {} {} -> {} {}", what, was, state, slot["because"])
        if (was, state) not in _MOVES:
            self.blame("status", f"the slot {what} went from {was} to {state}")
        if state == "working":
            self._let_go(id_, what, account, slot, now_ms)
            account.open[slot["seq"]] = slot
            return
        account.open.pop(slot["seq"], None)
        self._count(slot)
        if state == "ran":
            self._ran.add(id_)
            outcome = self._one("SELECT outcome FROM outcomes WHERE envelope = ?", slot["envelope"])
            if outcome is None or outcome[0] not in _RAN:
                self.blame("slots", f"the slot {what} ran, and its envelope is {outcome}")
        elif not slot["because"]:
            self.blame("slots", f"the slot {what} is {state}, and nobody knows why")

    def _let_go(self, id_: str, what: str, account: Account, slot: dict[str, Any], now_ms: int) -> None:
        others = [each for seq, each in account.open.items() if seq != slot["seq"] and each["state"] == "working"]
        if others and slot["by"] != "force":
            self.blame("doubled", f"the slot {what} is let go while that of {_shown(others[0]['at'])} is worked on")
        if account.schedule.gate is not None and slot["by"] != "force":
            if self._opened[id_] < 1:
                self.blame("gates", f"the slot {what} is let go, and its gate has not said yes")
            self._opened[id_] -= 1
        if slot["by"] != "clock":
            return
        if slot["at"] <= account.begun_ms:
            self.blame("doubled", f"the slot {what} is let go after that of {_shown(account.begun_ms)}")
        account.begun_ms = slot["at"]
        if slot["at"] > now_ms:
            self.blame("slots", f"the slot {what} is let go before its time, at {_shown(now_ms)}")
        if now_ms - slot["at"] > LATE_MS_MAX and not account.schedule.runs_late and account.schedule.gate is None:
            self.blame("slots", f"the slot {what} was missed, is not to be run late, and is let go")

    def _count(self, slot: dict[str, Any]) -> None:
        kind = slot["because"].partition(":")[0] if slot["state"] == "skipped" and ":" in slot["because"] else ""
        self.slots[f"{slot['state']} {kind}".strip() if slot["by"] == "clock" else f"{slot['state']} by hand"] += 1

    # --- after a commit ---

    def committed(self, point: str, now_ms: int) -> None:
        for id_, slot in self._taken_back:
            self._check_taken_back(id_, slot, now_ms)
        # A file that changes a schedule and disables it creates an occurrence and removes it, in one commit.
        taken_back = {slot["envelope"] for _, slot in self._taken_back}
        for envelope, id_ in self._mail.items():
            if id_ not in self._accounts or envelope in taken_back:
                continue
            if not any(slot["envelope"] == envelope for slot in self._accounts[id_].open.values()):
                self.blame("slots", f"the envelope {short(envelope)} of {short(id_)} is no occurrence of it")
        for id_, account in self._deleted.items():
            if point not in SET_BY_SOMEONE and not (account.schedule.delete_after_run and id_ in self._ran):
                self.blame("slots", f"{short(id_)} is deleted, and has not run")
        for id_ in self._touched & self._accounts.keys():
            self._check_armed(id_, self._accounts[id_])
        for each in (self._taken_back, self._mail, self._deleted, self._touched, self._ran):
            each.clear()

    def _check_taken_back(self, id_: str, slot: dict[str, Any], now_ms: int) -> None:
        account = self._accounts.get(id_)
        if account is None:
            return  # removed together with its schedule and the whole history
        what = f"{short(id_)} of {_shown(slot['at'])}"
        if slot["state"] not in _OPEN:
            if slot["seq"] > account.newest - HISTORY_MAX:
                self.blame("slots", f"what became of {what} is forgotten already")
            return
        if slot["state"] != "waiting" or slot["at"] <= now_ms:
            self.blame("slots", f"the slot {what} was {slot['state']}, and is gone without a word")

    def _check_armed(self, id_: str, account: Account) -> None:
        found = account.of_clock()
        if account.debts:
            self.blame("slots", f"{len(account.debts)} slots of {short(id_)} went by before it was changed, unsaid")
        if account.enabled and len(found) != 1:
            self.blame("armed", f"{short(id_)} is enabled, and has {len(found)} open occurrences")
        if not account.enabled and any(slot["state"] == "waiting" for slot in found):
            self.blame("armed", f"{short(id_)} is disabled, and has an occurrence that waits")

    # --- regularly, and at the end ---

    def late(self, house: SimulatedHouse) -> list[str]:
        """Returns the schedules with a due occurrence that still waits for the server that created it."""
        sql = (
            "SELECT schedule FROM schedule_slots"
            " WHERE state = 'waiting' AND clock_ms <= (SELECT latest_ms FROM house) ORDER BY schedule"
        )
        found = [id_ for (id_,) in self.disk.raw.execute(sql)]
        return [id_ for id_ in found if id_ in self._accounts and self._accounts[id_].house is house]

    def check_the_end(self, now_ms: int) -> None:
        """Check that every occurrence of an enabled schedule up to now is recorded or open."""
        for id_, account in self._accounts.items():
            self._check_armed(id_, account)
            if account.enabled and not account.open and account.owed(now_ms):
                self.blame("slots", f"slots of {short(id_)} have come, and nothing became of them")

    def _one(self, sql: str, *values: Any) -> tuple[Any, ...] | None:
        return self.disk.raw.execute(sql, values).fetchone()


def _shown(ms: int) -> str:
    return from_ms(ms).isoformat(sep=" ", timespec="milliseconds")[:-6]
