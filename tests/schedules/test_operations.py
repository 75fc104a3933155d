"""Schedules, reminders and wake-ups as they are asked for at the desk: who may, what is refused, and what is told."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from operations.operations_instance import DeskHouse, agent, desk_house, person
from schedules.schedule_instance import ended, turn_to, utc

from retinue.config import load_configuration
from retinue.domain.agent import Agent, PermissionLevel, ToolRules
from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound, TooLarge
from retinue.domain.principal import Principal
from retinue.domain.schedule import OCCURRENCES_KEPT_MAX
from retinue.domain.structs import replace
from retinue.operations.config_holder import ConfigHolder
from retinue.store.agents import agents
from retinue.store.core.tables import schedule_slots
from retinue.store.ledger import ledger
from retinue.store.schedules import schedules
from retinue.testing.local_instance import LocalInstance, terminal_origin
from retinue.testing.scripted_model import ScriptedReply

OWNER, MARIA, ADA, BO = person("owner"), person("maria"), agent("ada"), agent("bo")


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncGenerator[DeskHouse]:
    async with desk_house(LocalInstance(tmp_path)) as made:
        yield made


async def add(desk: DeskHouse, who: Principal = OWNER, **kw: Any) -> dict[str, Any]:
    kw.setdefault("text", "Good morning.")
    kw.setdefault("to", "agent:ada")
    if not {"at", "every", "cron"} & set(kw):
        kw["cron"] = "0 10 * * *"
    return await desk.ask(who, "schedule.add", **kw)


async def test_a_schedule_is_added_shown_listed_changed_and_deleted(desk: DeskHouse) -> None:
    made = await add(desk, name="Morning", zone="Europe/Berlin", description="So that ada is awake")
    assert (made["name"], made["next"], made["enabled"]) == ("Morning", "2026-01-06T09:00:00+00:00", True)
    assert made["when"] == "At 10:00 every day (Europe/Berlin)"
    assert await desk.ask(OWNER, "schedule.show", schedule="morning") == made
    assert await desk.ask(OWNER, "schedule.show", schedule=made["id"][:8]) == made

    changed = await desk.ask(OWNER, "schedule.set", schedule="Morning", every="1h30m", text="Hello.")
    assert (changed["cron"], changed["every"], changed["text"]) == ("", "1h30m", "Hello.")
    assert changed["next"] == "2026-01-05T10:30:00+00:00"
    gated = await desk.ask(OWNER, "schedule.set", schedule="Morning", gate={"command": "true"}, missed="run")
    assert (gated["gate"], gated["missed"]) == ({"command": "true", "timeout_ms": 30000}, "run")
    plain = await desk.ask(OWNER, "schedule.set", schedule="Morning", gate=None, missed="")
    assert (plain["gate"], plain["missed"]) == (None, "skip")

    assert [each["id"] for each in (await desk.ask(OWNER, "schedule.list"))["schedules"]] == [made["id"]]
    await desk.ask(OWNER, "schedule.delete", schedule="morning")
    assert (await desk.ask(OWNER, "schedule.list"))["schedules"] == []
    with pytest.raises(NotFound):
        await desk.ask(OWNER, "schedule.show", schedule="Morning")


async def test_lists_come_in_pages(desk: DeskHouse) -> None:
    made = {(await add(desk))["id"] for _ in range(7)}
    seen: list[str] = []
    cursor = ""
    while True:
        page = await desk.ask(OWNER, "schedule.list", limit=3, cursor=cursor)
        seen += [each["id"] for each in page["schedules"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert len(seen) == 7 and set(seen) == made
    with pytest.raises(Invalid):
        await desk.ask(OWNER, "schedule.list", cursor="nonsense")


@pytest.mark.spec("D43")
@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"cron": "61 * * * *"}, "cron.invalid"),
        ({"cron": "0 0 30 2 *"}, "cron.invalid"),
        ({"at": "2020-01-01T00:00Z"}, "schedule.never_occurs"),
        ({"at": "teatime"}, "time.invalid"),
        ({"every": "0s"}, "schedule.every_invalid"),
        ({"every": "1h1h"}, "schedule.duration_invalid"),
        ({"cron": "@daily", "every": "1h"}, "schedule.when_invalid"),
        ({"zone": "Europe/Atlantis"}, "zone.unknown"),
        ({"to": "schedule:" + "a" * 32}, "schedule.recipient_invalid"),
        ({"to": "agent:nobody"}, "agent.not_found"),
        ({"to": "person:nobody"}, "person.not_found"),
        ({"text": "  "}, "schedule.empty"),
        ({"text": "x" * 100_001}, "schedule.too_large"),
        ({"text": "a\x00b"}, "text.unstorable"),
        ({"name": "not a name"}, "name.invalid"),
        ({"deliver": "agent:bo"}, "schedule.deliver_invalid"),
        ({"gate": {"command": ""}}, "schedule.gate_invalid"),
        ({"gate": {"command": "x", "timeout_ms": 5}}, "schedule.gate_invalid"),
        ({"gate": {"command": "x", "domains": ["a.example"]}}, "schedule.gate_invalid"),
        ({"gate": {"command": "x", "domains": ["*"], "permissions": ["web"]}}, "schedule.gate_invalid"),
        ({"to": "person:maria", "gate": {"command": "x"}}, "schedule.gate_invalid"),
    ],
)
async def test_what_cannot_be_is_refused_and_nothing_is_kept(desk: DeskHouse, given: dict[str, Any], code: str) -> None:
    with pytest.raises((Invalid, NotFound, TooLarge)) as refused:
        await add(desk, **given)
    assert refused.value.code == code
    assert (await desk.ask(OWNER, "schedule.list"))["schedules"] == []
    [count] = await desk.house.execute_sql("SELECT count(*) AS n FROM envelopes")
    assert count.n == 0


@pytest.mark.spec("H30")
async def test_explaining_says_when_in_words_and_makes_nothing(desk: DeskHouse) -> None:
    told = await desk.ask(OWNER, "schedule.explain", cron="0 9 * * 1-5", zone="Europe/Berlin", count=3)
    assert told["words"] == "At 09:00 on Monday through Friday (Europe/Berlin)"
    assert (told["zone"], told["evaluated-at"]) == ("Europe/Berlin", "2026-01-05T10:00:00+01:00")
    assert told["next"] == [f"2026-01-0{day}T09:00:00+01:00" for day in (6, 7, 8)]
    assert len((await desk.ask(OWNER, "schedule.explain", every="90s", count=20))["next"]) == 20
    assert (await desk.ask(OWNER, "schedule.explain", at="+1h"))["next"] == ["2026-01-05T10:00:00+00:00"]
    for bad in ({"cron": "x"}, {"cron": "@daily", "count": 21}, {"cron": "@daily", "count": 0}, {}):
        with pytest.raises(Invalid):
            await desk.ask(OWNER, "schedule.explain", **bad)
    for table in ("schedules", "schedule_slots", "envelopes"):
        [row] = await desk.house.execute_sql(f"SELECT count(*) AS n FROM {table}")
        assert row.n == 0


async def test_next_says_when_one_comes(desk: DeskHouse) -> None:
    await add(desk, name="tea", every="6h")
    told = await desk.ask(OWNER, "schedule.next", schedule="tea", count=2)
    assert told["next"] == ["2026-01-05T15:00:00+00:00", "2026-01-05T21:00:00+00:00"]


@pytest.mark.spec("H31")
async def test_only_its_owner_sees_and_changes_a_schedule_and_the_owner_of_the_house(desk: DeskHouse) -> None:
    marias = (await add(desk, MARIA, name="marias"))["id"]
    adas = (await add(desk, ADA, name="adas", to=""))["id"]
    asking: list[tuple[str, dict[str, Any]]] = [
        *(("schedule.set", {"text": "Mine now."}), ("schedule.enable", {}), ("schedule.disable", {})),
        *(("schedule.run", {}), ("schedule.delete", {}), ("schedule.show", {})),
        *(("schedule.next", {}), ("schedule.history", {})),
    ]
    for who, foreign in ((MARIA, adas), (ADA, marias), (BO, adas), (person("noor"), marias)):
        for name in (foreign, foreign[:8], "marias" if foreign == marias else "adas"):
            for operation, more in asking:
                with pytest.raises(NotFound) as refused:
                    await desk.ask(who, operation, schedule=name, **more)
                assert refused.value.code == "schedule.not_found"
    assert [each["id"] for each in (await desk.ask(ADA, "schedule.list"))["schedules"]] == [adas]
    assert [each["id"] for each in (await desk.ask(MARIA, "schedule.list"))["schedules"]] == [marias]
    assert {each["id"] for each in (await desk.ask(OWNER, "schedule.list"))["schedules"]} == {adas, marias}
    assert (await desk.ask(MARIA, "schedule.disable", schedule="marias"))["because"] == "disabled by person:maria"
    assert (await desk.ask(OWNER, "schedule.set", schedule="adas", text="As you like."))["owner"] == "agent:ada"


async def test_others_than_the_owner_come_at_most_once_a_minute_and_run_no_commands(desk: DeskHouse) -> None:
    for who in (MARIA, ADA):
        with pytest.raises(NotAllowed) as refused:
            await add(desk, who, every="59s")
        assert refused.value.code == "schedule.too_often"
    await add(desk, MARIA, every="60s")
    await add(desk, OWNER, cron="* * * * * *")
    with pytest.raises(NotAllowed) as refused:
        await add(desk, MARIA, gate={"command": "true"})
    assert refused.value.code == "schedule.gate_not_allowed"
    # An agent that has to ask before it runs a command cannot have the clock run one.
    careful = Agent(name="ada", model="scripted", tools=ToolRules(ask=("exec",)))
    await desk.house.store.write(lambda conn: agents.upsert(conn, careful, source="test", at_ms=2), point="test")
    with pytest.raises(NotAllowed):
        await add(desk, ADA, gate={"command": "true"})


async def test_a_name_is_for_one_schedule_and_there_is_an_end_to_how_many_one_may_have(desk: DeskHouse) -> None:
    await add(desk, name="Tea")
    with pytest.raises(Conflict):
        await add(desk, name="tea")
    await desk.house.execute_sql("UPDATE schedules SET owner = 'agent:ada', folded = NULL")
    body = [{"n": f"{n:032x}"} for n in range(99)]
    for each in body:
        await desk.house.execute_sql(
            "INSERT INTO schedules SELECT :n, NULL, kind, owner, recipient, body, false, '', zone, filed, NULL, NULL,"
            " 0, 0 FROM schedules WHERE id NOT LIKE '0000%' LIMIT 1",
            **each,
        )
    with pytest.raises(TooLarge):
        await add(desk, ADA)
    assert await add(desk, OWNER)


async def test_a_run_by_hand_is_told_when_it_is_asked_for_and_when_it_is_skipped(desk: DeskHouse) -> None:
    household = desk.house.instance
    await add(desk, name="tea")
    household.model.script.append(ScriptedReply(text="slow", after_s=3000))
    await desk.ask(OWNER, "schedule.run", schedule="tea")
    await desk.house.wait_for(lambda conn: len(household.model.prompts) == 1, what="the model to be asked")
    skipped = await desk.ask(OWNER, "schedule.run", schedule="tea")
    rows = await desk.house.execute_sql("SELECT body FROM news WHERE kind = 'schedule.changed' ORDER BY seq")
    told = [json.loads(row.body) for row in rows]
    assert [each["change"] for each in told] == ["added", "waiting", "skipped"]
    assert (told[-1]["because"], told[-1]["name"]) == (skipped["because"], "tea")
    await turn_to(desk.house, utc("2026-01-05 09:50"))  # else the close would wait for the run that is at work


@pytest.mark.spec("A62", "A63", "C74.run_log")
async def test_the_history_tells_what_became_of_every_slot(desk: DeskHouse) -> None:
    household = desk.house.instance
    await add(desk, name="tea")
    begun = await desk.ask(OWNER, "schedule.run", schedule="tea")
    assert begun["begun"] and begun["envelope"]
    await desk.house.wait_for_outcome(begun["envelope"])
    household.model.script.append(ScriptedReply(text="slow", after_s=3000))
    await desk.ask(OWNER, "schedule.run", schedule="tea")
    await desk.house.wait_for(lambda conn: len(household.model.prompts) == 2, what="the model to be asked")
    skipped = await desk.ask(OWNER, "schedule.run", schedule="tea")
    assert not skipped["begun"] and skipped["because"].startswith("overlap: ")
    forced = await desk.ask(OWNER, "schedule.run", schedule="tea", force=True)
    assert forced["begun"]
    await turn_to(desk.house, utc("2026-01-05 09:50"))
    # Between the end of one and the claim of the next, none is at work: wait for the last one itself.
    await desk.house.wait_for_outcome(forced["envelope"])
    await turn_to(desk.house, utc("2026-01-05 10:00"))
    found = await desk.house.store.read(lambda conn: schedules.get_by_name(conn, "tea"))
    assert found is not None
    await ended(desk.house, found.schedule, at=utc("2026-01-05 10:00"))
    told = (await desk.ask(OWNER, "schedule.history", schedule="tea"))["slots"]
    by_hand = [(each["by"], each["state"]) for each in reversed(told) if each["state"] != "waiting"]
    assert by_hand == [
        *(("hand", "ran"), ("hand", "ran"), ("hand", "skipped"), ("force", "ran"), ("clock", "ran")),
    ]
    first = await desk.ask(OWNER, "schedule.history", schedule="tea", limit=2)
    rest = await desk.ask(OWNER, "schedule.history", schedule="tea", limit=20, cursor=first["next"])
    assert first["slots"] + rest["slots"] == told and rest["next"] is None


@pytest.mark.spec("C74.retention")
async def test_of_the_slots_of_a_schedule_the_last_500_are_kept(desk: DeskHouse) -> None:
    await add(desk, name="tea")
    begun = await desk.ask(OWNER, "schedule.run", schedule="tea")
    await desk.house.wait_for_outcome(begun["envelope"])
    await desk.house.wait_until_idle()

    def copy_until_full(conn: sa.Connection) -> int:
        """As many slots as are kept, each like the one that ran."""
        names = schedule_slots.c.keys()
        rows = [{name: getattr(row, name) for name in names} for row in conn.execute(schedule_slots.select())]
        ran, last = next(row for row in rows if row["state"] == "ran"), max(row["seq"] for row in rows)
        conn.execute(
            schedule_slots.insert(),
            [{**ran, "seq": seq, "because": str(seq)} for seq in range(last + 1, OCCURRENCES_KEPT_MAX + 1)],
        )
        return ran["seq"]

    first = await desk.house.store.write(copy_until_full, point="test")
    for _ in range(2):
        begun = await desk.ask(OWNER, "schedule.run", schedule="tea")
        await desk.house.wait_for_outcome(begun["envelope"])
    kept = [
        row.seq
        for row in await desk.house.execute_sql("SELECT seq FROM schedule_slots WHERE state = 'ran' ORDER BY seq")
    ]
    assert kept == list(range(first + 1, OCCURRENCES_KEPT_MAX + 3))


async def test_a_members_schedule_answers_its_member(desk: DeskHouse) -> None:
    await add(desk, MARIA, name="tea")
    await turn_to(desk.house, utc("2026-01-05 10:00"))
    found = await desk.house.store.read(lambda conn: schedules.get_by_name(conn, "tea"))
    assert found is not None
    await ended(desk.house, found.schedule, at=utc("2026-01-05 10:00"))
    assert [mail.text for mail in await desk.house.list_envelopes_to("maria")] == ["ok"]
    assert await desk.house.list_envelopes_to("owner") == []


async def test_an_occurrence_that_is_taken_back_by_hand_is_skipped_and_the_next_is_there(desk: DeskHouse) -> None:
    made = await add(desk, name="tea")
    await desk.ask(OWNER, "envelope.cancel", id=made["envelope"])
    shown = await desk.ask(OWNER, "schedule.show", schedule="tea")
    assert shown["next"] == "2026-01-06T10:00:00+00:00"
    [slot] = [
        s for s in (await desk.ask(OWNER, "schedule.history", schedule="tea"))["slots"] if s["state"] != "waiting"
    ]
    assert (slot["state"], slot["because"]) == ("skipped", "cancelled by person:owner")


async def test_an_agent_that_is_let_go_takes_its_schedules_with_it(desk: DeskHouse) -> None:
    await add(desk, BO, name="bos", to="")
    await add(desk, name="for-bo", to="agent:bo")
    await desk.ask(OWNER, "agent.delete", name="bo")
    left = (await desk.ask(OWNER, "schedule.list"))["schedules"]
    assert [(each["name"], each["enabled"], each["because"]) for each in left] == [("for-bo", False, "bo was deleted")]
    checked = await desk.house.store.scan(lambda conn: ledger.check_ledger(conn, now_ms=0))
    assert checked.is_ok, "\n".join(checked.lines())


# --- wake-ups and reminders ---


async def conversation(desk: DeskHouse) -> str:
    receipt = await desk.house.send("Hello.", sender="person:owner", origin=terminal_origin("owner"))
    await desk.house.wait_for_outcome(receipt.envelope)
    assert receipt.session is not None
    return receipt.session


@pytest.mark.spec("A64")
async def test_a_wake_up_comes_into_its_conversation_once_also_after_a_stop(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path)
    async with desk_house(household) as desk:
        session = await conversation(desk)
        made = await desk.ask(ADA, "wakeup.add", session=session, text="Look at the oven.", delay_s=1800)
        assert made["next"] == "2026-01-05T09:30:00+00:00"
    household.clock.jump(timedelta(hours=3))
    async with desk_house(household) as desk:
        await desk.house.wait_for(lambda conn: schedules.get(conn, made["id"]) is None, what="it to be gone")
        assert len(household.model.prompts) == 2
        assert "Look at the oven." in str(household.model.prompts[-1].records[-1].body)


@pytest.mark.spec("A64")
async def test_a_conversation_has_so_many_wake_ups_and_a_person_so_many_reminders(desk: DeskHouse) -> None:
    session = await conversation(desk)
    for n in range(25):
        await desk.ask(ADA, "wakeup.add", session=session, text=f"{n}", at="+1h")
        await desk.ask(OWNER, "reminder.add", text=f"{n}", at="+1h")
    with pytest.raises(TooLarge) as refused:
        await desk.ask(ADA, "wakeup.add", session=session, text="one more", at="+1h")
    assert refused.value.code == "wakeup.too_many"
    with pytest.raises(TooLarge) as refused:
        await desk.ask(OWNER, "reminder.add", text="one more", at="+1h")
    assert refused.value.code == "reminder.too_many"
    [first, *_] = (await desk.ask(ADA, "wakeup.list", session=session))["wakeups"]
    await desk.ask(ADA, "wakeup.delete", id=first["id"])
    await desk.ask(ADA, "wakeup.add", session=session, text="now it fits", at="+1h")


@pytest.mark.spec("A64")
@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"at": "2026-01-05T20:00:00"}, "time.no_offset"),
        ({"at": "2026-01-05 20:00"}, "time.no_offset"),
        ({}, "reminder.time_missing"),
        ({"at": "+1h", "delay_s": 5}, "reminder.time_missing"),
        ({"delay_s": -5}, "reminder.delay_invalid"),
        ({"at": "2020-01-05T20:00:00Z"}, "schedule.never_occurs"),
        ({"at": "+1h", "text": "x" * 2_001}, "schedule.too_large"),
    ],
)
async def test_the_time_of_a_reminder_is_said_with_its_offset(
    desk: DeskHouse, given: dict[str, Any], code: str
) -> None:
    with pytest.raises((Invalid, TooLarge)) as refused:
        await desk.ask(OWNER, "reminder.add", **{"text": "Call Noor.", **given})
    assert refused.value.code == code


@pytest.mark.spec("A64")
async def test_an_agent_reads_the_words_of_a_wake_up_only_where_it_is_for(desk: DeskHouse) -> None:
    here = await conversation(desk)
    receipt = await desk.house.send("Hello.", sender="person:maria", origin=terminal_origin("maria"))
    assert receipt.session is not None
    await desk.house.wait_for_outcome(receipt.envelope)
    await desk.ask(ADA, "wakeup.add", session=here, text="Of the owner.", at="+1h")
    await desk.ask(ADA, "wakeup.add", session=receipt.session, text="Of maria.", at="+2h")
    told = (await desk.ask(ADA, "wakeup.list", session=here))["wakeups"]
    assert [(each["text"], each["redacted"]) for each in told] == [("Of the owner.", False), ("", True)]
    assert [each["text"] for each in (await desk.ask(OWNER, "wakeup.list"))["wakeups"]] == [
        "Of the owner.",
        "Of maria.",
    ]
    with pytest.raises(NotFound):
        await desk.ask(BO, "wakeup.add", session=here, text="Not yours.", at="+1h")


@pytest.mark.spec("A64", "C75")
async def test_a_reminder_reaches_its_person_without_any_agent(desk: DeskHouse) -> None:
    made = await desk.ask(OWNER, "reminder.add", text="Call Noor.", at="2026-01-05T12:00:00+02:00")
    assert made["next"] == "2026-01-05T10:00:00+00:00"
    await turn_to(desk.house, utc("2026-01-05 10:00"))
    await desk.house.wait_for(lambda conn: schedules.get(conn, made["id"]) is None, what="it to be gone")
    assert [mail.text for mail in await desk.house.list_envelopes_to("owner")] == ["Call Noor."]
    [told] = (await desk.ask(OWNER, "notification.list"))["notifications"]
    assert (told["title"], told["text"]) == ("Call Noor.", "Call Noor.")
    assert desk.house.instance.model.prompts == []
    with pytest.raises(NotAllowed):
        await desk.ask(MARIA, "reminder.add", text="Nagging.", at="+1h", to="person:owner")


# --- declared in the settings ---

DECLARED = """
[schedules.morning]
agent = "ada"
kind = "cron"
cron = "0 9 * * 1-5"
text = "What is on today?"
zone = "Europe/Berlin"
[schedules.morning.gate]
command = "test -s inbox.txt"
timeout_ms = 1000

[schedules.tick]
agent = "ada"
kind = "every"
every_s = 3600
text = "Tick."
enabled = false
"""


@pytest.mark.spec("H91.schedules")
async def test_what_the_settings_declare_is_applied_and_what_was_changed_since_is_not_overwritten(
    desk: DeskHouse, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environment = {"RETINUE_HOME": str(home)}
    desk.desk = replace(desk.desk, config_holder=ConfigHolder(load_configuration(environment), environment))
    file = home / "retinue.toml"
    file.write_text(DECLARED)

    def steps(applied: dict[str, Any]) -> dict[str, str]:
        return {each["name"]: each["step"] for each in applied["schedules"]}

    dry = await desk.ask(OWNER, "config.apply", dry_run=True)
    assert steps(dry) == {"morning": "add", "tick": "add"}
    assert dry["not-yet"] == []
    assert (await desk.ask(OWNER, "schedule.list"))["schedules"] == []
    assert steps(await desk.ask(OWNER, "config.apply")) == {"morning": "add", "tick": "add"}
    morning = await desk.ask(OWNER, "schedule.show", schedule="morning")
    assert (morning["next"], morning["gate"]) == (
        "2026-01-06T08:00:00+00:00",
        {"command": "test -s inbox.txt", "timeout_ms": 1000},
    )
    tick = await desk.ask(OWNER, "schedule.show", schedule="tick")
    assert (tick["enabled"], tick["because"], tick["every"]) == (False, "disabled in the settings", "1h")
    assert steps(await desk.ask(OWNER, "config.apply")) == {"morning": "keep", "tick": "keep"}

    file.write_text(DECLARED.replace("enabled = false", "").replace("0 9 *", "30 9 *"))
    assert steps(await desk.ask(OWNER, "config.apply")) == {"morning": "change", "tick": "change"}
    assert (await desk.ask(OWNER, "schedule.show", schedule="morning"))["id"] == morning["id"]
    assert (await desk.ask(OWNER, "schedule.show", schedule="tick"))["enabled"]

    await add(desk, name="by-hand")
    file.write_text(DECLARED + '[schedules.by-hand]\nagent = "bo"\nkind = "cron"\ncron = "0 1 * * *"\ntext = "x"\n')
    assert steps(await desk.ask(OWNER, "config.apply"))["by-hand"] == "drift"
    assert (await desk.ask(OWNER, "schedule.show", schedule="by-hand"))["to"] == "agent:ada"
    assert steps(await desk.ask(OWNER, "config.apply", take="file"))["by-hand"] == "change"
    assert (await desk.ask(OWNER, "schedule.show", schedule="by-hand"))["to"] == "agent:bo"

    await add(desk, name="gone-soon")
    assert steps(await desk.ask(OWNER, "config.apply", reset=True)) == {
        "morning": "add",
        "tick": "add",
        "by-hand": "add",
    }
    names = {each["name"] for each in (await desk.ask(OWNER, "schedule.list"))["schedules"]}
    assert names == {"morning", "tick", "by-hand"}
    file.write_text(DECLARED.replace("0 9 * * 1-5", "0 9 30 2 *"))
    with pytest.raises(Exception, match=r"schedules\.morning") as refused:
        await desk.ask(OWNER, "config.apply")
    assert "cron" in str(refused.value)


async def test_the_owners_zone_is_the_one_of_the_settings(desk: DeskHouse) -> None:
    desk.desk = replace(desk.desk, zone=ZoneInfo("Asia/Tokyo"))
    made = await add(desk, cron="0 20 * * *")
    assert (made["next"], made["follows-owner-zone"]) == ("2026-01-05T20:00:00+09:00", True)
    restricted = agent("ada", PermissionLevel.RESTRICTED)
    with pytest.raises(NotAllowed):
        await add(desk, restricted, model="scripted")
