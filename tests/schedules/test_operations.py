"""Operations on schedules, reminders and wake-ups: permissions, refusals and responses."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from operations.operations_instance import OperationsServer, agent, open_operations_server, person
from schedules.schedule_instance import advance_clock_to, ended, utc

from retinue.config import load_configuration
from retinue.domain.agent import Agent, PermissionLevel, ToolRules
from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound, TooLarge
from retinue.domain.principal import Principal
from retinue.domain.schedule import OCCURRENCES_KEPT_MAX
from retinue.domain.structs import replace
from retinue.operations.config_holder import ConfigHolder
from retinue.store.agents import agents
from retinue.store.core.tables import occurrences
from retinue.store.ledger import ledger
from retinue.store.schedules import schedules
from retinue.testing.local_instance import LocalInstance, terminal_origin
from retinue.testing.scripted_model import ScriptedReply

OWNER, MARIA, ADA, BO = person("owner"), person("maria"), agent("ada"), agent("bo")


@pytest.fixture
async def operations(tmp_path: Path) -> AsyncGenerator[OperationsServer]:
    async with open_operations_server(LocalInstance(tmp_path)) as made:
        yield made


async def add_schedule(operations: OperationsServer, who: Principal = OWNER, **kw: Any) -> dict[str, Any]:
    kw.setdefault("text", "Good morning.")
    kw.setdefault("to", "agent:ada")
    if not {"at", "every", "cron"} & set(kw):
        kw["cron"] = "0 10 * * *"
    return await operations.ask(who, "schedule.add", **kw)


async def test_a_schedule_is_added_shown_listed_changed_and_deleted(operations: OperationsServer) -> None:
    made = await add_schedule(operations, name="Morning", zone="Europe/Berlin", description="So that ada is awake")
    assert (made["name"], made["next"], made["enabled"]) == ("Morning", "2026-01-06T09:00:00+00:00", True)
    assert made["when"] == "At 10:00 every day (Europe/Berlin)"
    assert await operations.ask(OWNER, "schedule.show", schedule="morning") == made
    assert await operations.ask(OWNER, "schedule.show", schedule=made["id"][:8]) == made

    changed = await operations.ask(OWNER, "schedule.set", schedule="Morning", every="1h30m", text="Hello.")
    assert (changed["cron"], changed["every"], changed["text"]) == ("", "1h30m", "Hello.")
    assert changed["next"] == "2026-01-05T10:30:00+00:00"
    gated = await operations.ask(OWNER, "schedule.set", schedule="Morning", gate={"command": "true"}, missed="run")
    assert (gated["gate"], gated["missed"]) == ({"command": "true", "timeout_ms": 30000}, "run")
    plain = await operations.ask(OWNER, "schedule.set", schedule="Morning", gate=None, missed="")
    assert (plain["gate"], plain["missed"]) == (None, "skip")

    assert [each["id"] for each in (await operations.ask(OWNER, "schedule.list"))["schedules"]] == [made["id"]]
    await operations.ask(OWNER, "schedule.delete", schedule="morning")
    assert (await operations.ask(OWNER, "schedule.list"))["schedules"] == []
    with pytest.raises(NotFound):
        await operations.ask(OWNER, "schedule.show", schedule="Morning")


async def test_schedule_list_returns_pages(operations: OperationsServer) -> None:
    made = {(await add_schedule(operations))["id"] for _ in range(7)}
    seen: list[str] = []
    cursor = ""
    while True:
        page = await operations.ask(OWNER, "schedule.list", limit=3, cursor=cursor)
        seen += [each["id"] for each in page["schedules"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert len(seen) == 7 and set(seen) == made
    with pytest.raises(Invalid):
        await operations.ask(OWNER, "schedule.list", cursor="nonsense")


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
        ({"deliver_to": "agent:bo"}, "schedule.deliver_invalid"),
        ({"gate": {"command": ""}}, "schedule.gate_invalid"),
        ({"gate": {"command": "x", "timeout_ms": 5}}, "schedule.gate_invalid"),
        ({"gate": {"command": "x", "domains": ["a.example"]}}, "schedule.gate_invalid"),
        ({"gate": {"command": "x", "domains": ["*"], "permissions": ["web"]}}, "schedule.gate_invalid"),
        ({"to": "person:maria", "gate": {"command": "x"}}, "schedule.gate_invalid"),
    ],
)
async def test_an_invalid_schedule_is_refused_and_not_stored(
    operations: OperationsServer, given: dict[str, Any], code: str
) -> None:
    with pytest.raises((Invalid, NotFound, TooLarge)) as refused:
        await add_schedule(operations, **given)
    assert refused.value.code == code
    assert (await operations.ask(OWNER, "schedule.list"))["schedules"] == []
    [count] = await operations.server.execute_sql("SELECT count(*) AS n FROM envelopes")
    assert count.n == 0


@pytest.mark.spec("H30")
async def test_schedule_explain_describes_the_times_in_words_and_stores_nothing(operations: OperationsServer) -> None:
    response = await operations.ask(OWNER, "schedule.explain", cron="0 9 * * 1-5", zone="Europe/Berlin", count=3)
    assert response["description"] == "At 09:00 on Monday through Friday (Europe/Berlin)"
    assert (response["zone"], response["evaluated_at"]) == ("Europe/Berlin", "2026-01-05T10:00:00+01:00")
    assert response["next"] == [f"2026-01-0{day}T09:00:00+01:00" for day in (6, 7, 8)]
    assert len((await operations.ask(OWNER, "schedule.explain", every="90s", count=20))["next"]) == 20
    assert (await operations.ask(OWNER, "schedule.explain", at="+1h"))["next"] == ["2026-01-05T10:00:00+00:00"]
    for bad in ({"cron": "x"}, {"cron": "@daily", "count": 21}, {"cron": "@daily", "count": 0}, {}):
        with pytest.raises(Invalid):
            await operations.ask(OWNER, "schedule.explain", **bad)
    for table in ("schedules", "occurrences", "envelopes"):
        [row] = await operations.server.execute_sql(f"SELECT count(*) AS n FROM {table}")
        assert row.n == 0


async def test_schedule_next_lists_the_next_occurrences(operations: OperationsServer) -> None:
    await add_schedule(operations, name="tea", every="6h")
    response = await operations.ask(OWNER, "schedule.next", schedule="tea", count=2)
    assert response["next"] == ["2026-01-05T15:00:00+00:00", "2026-01-05T21:00:00+00:00"]


@pytest.mark.spec("H31")
async def test_only_its_creator_and_the_instance_owner_can_see_and_change_a_schedule(
    operations: OperationsServer,
) -> None:
    marias = (await add_schedule(operations, MARIA, name="marias"))["id"]
    adas = (await add_schedule(operations, ADA, name="adas", to=""))["id"]
    asking: list[tuple[str, dict[str, Any]]] = [
        *(("schedule.set", {"text": "Mine now."}), ("schedule.enable", {}), ("schedule.disable", {})),
        *(("schedule.run", {}), ("schedule.delete", {}), ("schedule.show", {})),
        *(("schedule.next", {}), ("schedule.history", {})),
    ]
    for who, foreign in ((MARIA, adas), (ADA, marias), (BO, adas), (person("noor"), marias)):
        for name in (foreign, foreign[:8], "marias" if foreign == marias else "adas"):
            for operation, more in asking:
                with pytest.raises(NotFound) as refused:
                    await operations.ask(who, operation, schedule=name, **more)
                assert refused.value.code == "schedule.not_found"
    assert [each["id"] for each in (await operations.ask(ADA, "schedule.list"))["schedules"]] == [adas]
    assert [each["id"] for each in (await operations.ask(MARIA, "schedule.list"))["schedules"]] == [marias]
    assert {each["id"] for each in (await operations.ask(OWNER, "schedule.list"))["schedules"]} == {adas, marias}
    assert (await operations.ask(MARIA, "schedule.disable", schedule="marias"))["because"] == "disabled by person:maria"
    assert (await operations.ask(OWNER, "schedule.set", schedule="adas", text="As you like."))["owner"] == "agent:ada"


async def test_schedules_of_others_than_the_owner_run_at_most_once_a_minute_and_without_gates(
    operations: OperationsServer,
) -> None:
    for who in (MARIA, ADA):
        with pytest.raises(NotAllowed) as refused:
            await add_schedule(operations, who, every="59s")
        assert refused.value.code == "schedule.too_often"
    await add_schedule(operations, MARIA, every="60s")
    await add_schedule(operations, OWNER, cron="* * * * * *")
    with pytest.raises(NotAllowed) as refused:
        await add_schedule(operations, MARIA, gate={"command": "true"})
    assert refused.value.code == "schedule.gate_not_allowed"
    # An agent that needs approval for commands cannot have a schedule run one.
    careful = Agent(name="ada", model="scripted", tools=ToolRules(ask=("exec",)))
    await operations.server.store.write(lambda conn: agents.upsert(conn, careful, source="test", at_ms=2), point="test")
    with pytest.raises(NotAllowed):
        await add_schedule(operations, ADA, gate={"command": "true"})


async def test_schedule_names_are_unique_and_the_number_of_schedules_is_limited(operations: OperationsServer) -> None:
    await add_schedule(operations, name="Tea")
    with pytest.raises(Conflict):
        await add_schedule(operations, name="tea")
    await operations.server.execute_sql("UPDATE schedules SET owner = 'agent:ada', name_folded = NULL")
    body = [{"n": f"{n:032x}"} for n in range(99)]
    for each in body:
        await operations.server.execute_sql(
            "INSERT INTO schedules SELECT :n, NULL, kind, owner, recipient, body, false, '', zone, has_file, NULL,"
            " NULL,"
            " 0, 0 FROM schedules WHERE id NOT LIKE '0000%' LIMIT 1",
            **each,
        )
    with pytest.raises(TooLarge):
        await add_schedule(operations, ADA)
    assert await add_schedule(operations, OWNER)


async def test_a_manual_schedule_run_stores_events_when_requested_and_when_skipped(
    operations: OperationsServer,
) -> None:
    instance = operations.server.instance
    await add_schedule(operations, name="tea")
    instance.model.script.append(ScriptedReply(text="slow", after_s=3000))
    await operations.ask(OWNER, "schedule.run", schedule="tea")
    await operations.server.wait_for(lambda conn: len(instance.model.prompts) == 1, what="the model to be asked")
    skipped = await operations.ask(OWNER, "schedule.run", schedule="tea")
    rows = await operations.server.execute_sql("SELECT body FROM events WHERE kind = 'schedule.changed' ORDER BY seq")
    bodies = [json.loads(row.body) for row in rows]
    assert [each["change"] for each in bodies] == ["added", "waiting", "skipped"]
    assert (bodies[-1]["because"], bodies[-1]["name"]) == (skipped["because"], "tea")
    await advance_clock_to(operations.server, utc("2026-01-05 09:50"))  # otherwise the close would wait for the run


@pytest.mark.spec("A62", "A63", "C74.run_log")
async def test_schedule_history_shows_the_result_of_every_occurrence(operations: OperationsServer) -> None:
    instance = operations.server.instance
    await add_schedule(operations, name="tea")
    begun = await operations.ask(OWNER, "schedule.run", schedule="tea")
    assert begun["started"] and begun["envelope"]
    await operations.server.wait_for_outcome(begun["envelope"])
    instance.model.script.append(ScriptedReply(text="slow", after_s=3000))
    await operations.ask(OWNER, "schedule.run", schedule="tea")
    await operations.server.wait_for(lambda conn: len(instance.model.prompts) == 2, what="the model to be asked")
    skipped = await operations.ask(OWNER, "schedule.run", schedule="tea")
    assert not skipped["started"] and skipped["because"].startswith("overlap: ")
    forced = await operations.ask(OWNER, "schedule.run", schedule="tea", force=True)
    assert forced["started"]
    await advance_clock_to(operations.server, utc("2026-01-05 09:50"))
    # There is a moment without a run between two runs: wait for the outcome of the last one.
    await operations.server.wait_for_outcome(forced["envelope"])
    await advance_clock_to(operations.server, utc("2026-01-05 10:00"))
    found = await operations.server.store.read(lambda conn: schedules.get_by_name(conn, "tea"))
    assert found is not None
    await ended(operations.server, found.schedule, at=utc("2026-01-05 10:00"))
    occurrences_shown = (await operations.ask(OWNER, "schedule.history", schedule="tea"))["occurrences"]
    by_hand = [(each["trigger"], each["state"]) for each in reversed(occurrences_shown) if each["state"] != "waiting"]
    assert by_hand == [
        *(("manual", "ran"), ("manual", "ran"), ("manual", "skipped"), ("force", "ran"), ("clock", "ran")),
    ]
    first = await operations.ask(OWNER, "schedule.history", schedule="tea", limit=2)
    rest = await operations.ask(OWNER, "schedule.history", schedule="tea", limit=20, cursor=first["next"])
    assert first["occurrences"] + rest["occurrences"] == occurrences_shown and rest["next"] is None


@pytest.mark.spec("C74.retention")
async def test_the_last_500_occurrences_of_a_schedule_are_kept(operations: OperationsServer) -> None:
    await add_schedule(operations, name="tea")
    begun = await operations.ask(OWNER, "schedule.run", schedule="tea")
    await operations.server.wait_for_outcome(begun["envelope"])
    await operations.server.wait_until_idle()

    def copy_until_full(conn: sa.Connection) -> int:
        """Copy the occurrence that ran, up to the number that is kept."""
        names = occurrences.c.keys()
        rows = [{name: getattr(row, name) for name in names} for row in conn.execute(occurrences.select())]
        ran, last = next(row for row in rows if row["state"] == "ran"), max(row["seq"] for row in rows)
        conn.execute(
            occurrences.insert(),
            [{**ran, "seq": seq, "because": str(seq)} for seq in range(last + 1, OCCURRENCES_KEPT_MAX + 1)],
        )
        return ran["seq"]

    first = await operations.server.store.write(copy_until_full, point="test")
    for _ in range(2):
        begun = await operations.ask(OWNER, "schedule.run", schedule="tea")
        await operations.server.wait_for_outcome(begun["envelope"])
    kept = [
        row.seq
        for row in await operations.server.execute_sql("SELECT seq FROM occurrences WHERE state = 'ran' ORDER BY seq")
    ]
    assert kept == list(range(first + 1, OCCURRENCES_KEPT_MAX + 3))


async def test_a_members_schedule_answers_the_member(operations: OperationsServer) -> None:
    await add_schedule(operations, MARIA, name="tea")
    await advance_clock_to(operations.server, utc("2026-01-05 10:00"))
    found = await operations.server.store.read(lambda conn: schedules.get_by_name(conn, "tea"))
    assert found is not None
    await ended(operations.server, found.schedule, at=utc("2026-01-05 10:00"))
    assert [mail.text for mail in await operations.server.list_envelopes_to("maria")] == ["ok"]
    assert await operations.server.list_envelopes_to("owner") == []


async def test_cancelling_the_envelope_of_an_occurrence_skips_it_and_plans_the_next(
    operations: OperationsServer,
) -> None:
    made = await add_schedule(operations, name="tea")
    await operations.ask(OWNER, "envelope.cancel", id=made["envelope"])
    shown = await operations.ask(OWNER, "schedule.show", schedule="tea")
    assert shown["next"] == "2026-01-06T10:00:00+00:00"
    [slot] = [
        s
        for s in (await operations.ask(OWNER, "schedule.history", schedule="tea"))["occurrences"]
        if s["state"] != "waiting"
    ]
    assert (slot["state"], slot["because"]) == ("skipped", "cancelled by person:owner")


async def test_deleting_an_agent_deletes_its_schedules_and_disables_schedules_to_it(
    operations: OperationsServer,
) -> None:
    await add_schedule(operations, BO, name="bos", to="")
    await add_schedule(operations, name="for-bo", to="agent:bo")
    await operations.ask(OWNER, "agent.delete", name="bo")
    left = (await operations.ask(OWNER, "schedule.list"))["schedules"]
    assert [(each["name"], each["enabled"], each["because"]) for each in left] == [("for-bo", False, "bo was deleted")]
    checked = await operations.server.store.scan(lambda conn: ledger.check_ledger(conn, now_ms=0))
    assert checked.is_ok, "\n".join(checked.lines())


# --- wake-ups and reminders ---


async def start_session(operations: OperationsServer) -> str:
    receipt = await operations.server.send("Hello.", sender="person:owner", origin=terminal_origin("owner"))
    await operations.server.wait_for_outcome(receipt.envelope)
    assert receipt.session is not None
    return receipt.session


@pytest.mark.spec("A64")
async def test_a_wake_up_is_sent_to_its_session_once_also_after_a_restart(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path)
    async with open_operations_server(instance) as operations:
        session = await start_session(operations)
        made = await operations.ask(ADA, "wakeup.add", session=session, text="Look at the oven.", delay_s=1800)
        assert made["next"] == "2026-01-05T09:30:00+00:00"
    instance.clock.jump(timedelta(hours=3))
    async with open_operations_server(instance) as operations:
        await operations.server.wait_for(lambda conn: schedules.get(conn, made["id"]) is None, what="its deletion")
        assert len(instance.model.prompts) == 2
        assert "Look at the oven." in str(instance.model.prompts[-1].records[-1].body)


@pytest.mark.spec("A64")
async def test_wake_ups_of_a_session_and_reminders_of_a_person_are_limited(operations: OperationsServer) -> None:
    session = await start_session(operations)
    for n in range(25):
        await operations.ask(ADA, "wakeup.add", session=session, text=f"{n}", at="+1h")
        await operations.ask(OWNER, "reminder.add", text=f"{n}", at="+1h")
    with pytest.raises(TooLarge) as refused:
        await operations.ask(ADA, "wakeup.add", session=session, text="one more", at="+1h")
    assert refused.value.code == "wakeup.too_many"
    with pytest.raises(TooLarge) as refused:
        await operations.ask(OWNER, "reminder.add", text="one more", at="+1h")
    assert refused.value.code == "reminder.too_many"
    [first, *_] = (await operations.ask(ADA, "wakeup.list", session=session))["wakeups"]
    await operations.ask(ADA, "wakeup.delete", id=first["id"])
    await operations.ask(ADA, "wakeup.add", session=session, text="now it fits", at="+1h")


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
async def test_a_reminder_needs_one_valid_time_with_an_offset(
    operations: OperationsServer, given: dict[str, Any], code: str
) -> None:
    with pytest.raises((Invalid, TooLarge)) as refused:
        await operations.ask(OWNER, "reminder.add", **{"text": "Call Noor.", **given})
    assert refused.value.code == code


@pytest.mark.spec("A64")
async def test_an_agent_can_read_the_text_of_a_wake_up_only_in_its_session(operations: OperationsServer) -> None:
    here = await start_session(operations)
    receipt = await operations.server.send("Hello.", sender="person:maria", origin=terminal_origin("maria"))
    assert receipt.session is not None
    await operations.server.wait_for_outcome(receipt.envelope)
    await operations.ask(ADA, "wakeup.add", session=here, text="Of the owner.", at="+1h")
    await operations.ask(ADA, "wakeup.add", session=receipt.session, text="Of maria.", at="+2h")
    wakeups = (await operations.ask(ADA, "wakeup.list", session=here))["wakeups"]
    assert [(each["text"], each["redacted"]) for each in wakeups] == [("Of the owner.", False), ("", True)]
    assert [each["text"] for each in (await operations.ask(OWNER, "wakeup.list"))["wakeups"]] == [
        "Of the owner.",
        "Of maria.",
    ]
    with pytest.raises(NotFound):
        await operations.ask(BO, "wakeup.add", session=here, text="Not yours.", at="+1h")


@pytest.mark.spec("A64", "C75")
async def test_a_reminder_reaches_its_person_without_a_model_call(operations: OperationsServer) -> None:
    made = await operations.ask(OWNER, "reminder.add", text="Call Noor.", at="2026-01-05T12:00:00+02:00")
    assert made["next"] == "2026-01-05T10:00:00+00:00"
    await advance_clock_to(operations.server, utc("2026-01-05 10:00"))
    await operations.server.wait_for(lambda conn: schedules.get(conn, made["id"]) is None, what="its deletion")
    assert [mail.text for mail in await operations.server.list_envelopes_to("owner")] == ["Call Noor."]
    [notification] = (await operations.ask(OWNER, "notification.list"))["notifications"]
    assert (notification["title"], notification["text"]) == ("Call Noor.", "Call Noor.")
    assert operations.server.instance.model.prompts == []
    with pytest.raises(NotAllowed):
        await operations.ask(MARIA, "reminder.add", text="Nagging.", at="+1h", to="person:owner")


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
async def test_declared_schedules_are_applied_and_later_changes_are_not_overwritten(
    operations: OperationsServer, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environment = {"RETINUE_HOME": str(home)}
    operations.services = replace(
        operations.services, config_holder=ConfigHolder(load_configuration(environment), environment)
    )
    file = home / "retinue.toml"
    file.write_text(DECLARED)

    def steps(applied: dict[str, Any]) -> dict[str, str]:
        return {each["name"]: each["step"] for each in applied["schedules"]}

    dry = await operations.ask(OWNER, "config.apply", dry_run=True)
    assert steps(dry) == {"morning": "add", "tick": "add"}
    assert (await operations.ask(OWNER, "schedule.list"))["schedules"] == []
    assert steps(await operations.ask(OWNER, "config.apply")) == {"morning": "add", "tick": "add"}
    morning = await operations.ask(OWNER, "schedule.show", schedule="morning")
    assert (morning["next"], morning["gate"]) == (
        "2026-01-06T08:00:00+00:00",
        {"command": "test -s inbox.txt", "timeout_ms": 1000},
    )
    tick = await operations.ask(OWNER, "schedule.show", schedule="tick")
    assert (tick["enabled"], tick["because"], tick["every"]) == (False, "disabled in the settings", "1h")
    assert steps(await operations.ask(OWNER, "config.apply")) == {"morning": "keep", "tick": "keep"}

    file.write_text(DECLARED.replace("enabled = false", "").replace("0 9 *", "30 9 *"))
    assert steps(await operations.ask(OWNER, "config.apply")) == {"morning": "change", "tick": "change"}
    assert (await operations.ask(OWNER, "schedule.show", schedule="morning"))["id"] == morning["id"]
    assert (await operations.ask(OWNER, "schedule.show", schedule="tick"))["enabled"]

    await add_schedule(operations, name="by-hand")
    file.write_text(DECLARED + '[schedules.by-hand]\nagent = "bo"\nkind = "cron"\ncron = "0 1 * * *"\ntext = "x"\n')
    assert steps(await operations.ask(OWNER, "config.apply"))["by-hand"] == "drift"
    assert (await operations.ask(OWNER, "schedule.show", schedule="by-hand"))["to"] == "agent:ada"
    assert steps(await operations.ask(OWNER, "config.apply", overwrite=True))["by-hand"] == "change"
    assert (await operations.ask(OWNER, "schedule.show", schedule="by-hand"))["to"] == "agent:bo"

    await add_schedule(operations, name="gone-soon")
    assert steps(await operations.ask(OWNER, "config.apply", reset=True)) == {
        "morning": "add",
        "tick": "add",
        "by-hand": "add",
    }
    names = {each["name"] for each in (await operations.ask(OWNER, "schedule.list"))["schedules"]}
    assert names == {"morning", "tick", "by-hand"}
    file.write_text(DECLARED.replace("0 9 * * 1-5", "0 9 30 2 *"))
    with pytest.raises(Exception, match=r"schedules\.morning") as refused:
        await operations.ask(OWNER, "config.apply")
    assert "cron" in str(refused.value)


async def test_a_schedule_without_a_zone_follows_the_zone_of_the_settings(operations: OperationsServer) -> None:
    operations.services = replace(operations.services, zone=ZoneInfo("Asia/Tokyo"))
    made = await add_schedule(operations, cron="0 20 * * *")
    assert (made["next"], made["follows_owner_zone"]) == ("2026-01-05T20:00:00+09:00", True)
    restricted = agent("ada", PermissionLevel.RESTRICTED)
    with pytest.raises(NotAllowed):
        await add_schedule(operations, restricted, model="scripted")
