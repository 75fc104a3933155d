"""`agent:background`: one job, acknowledged at once, done with nothing but its words, and told of exactly once."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from flows.team_instance import letters, outcome, plays, said_to, sums_hold
from flows.tools_instance import ADA, hands_house
from operations.operations_instance import agent as agent_principal

from retinue.domain.agent import Agent, DelegationRules
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import EnvelopeKind, Outcome
from retinue.domain.errors import Invalid
from retinue.domain.event import EventKind
from retinue.domain.record import UserTurn
from retinue.domain.session import OriginKind
from retinue.domain.structs import replace
from retinue.domain.tool import ToolSpec
from retinue.domain.trust import Trust
from retinue.engine.lanes import SlotLimits
from retinue.intake.background_jobs import FAILED_PREFIX
from retinue.store.core import events
from retinue.store.ledger.ledger import check_ledger
from retinue.store.sessions import sessions
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply
from retinue.testing.wait_conditions import wait_until
from retinue.tools.base import ToolContext, schema_of

TOLD = replace(ADA, instructions="You are ada, and proud of it.")
JOB = "Count the chairs in the shop."


def job(text: str = JOB, **more: Any) -> ScriptedReply:
    return tool_call_reply("message", to="agent:background", text=text, **more)


class NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


@dataclass(slots=True)
class LookAround:
    """Keeps what a call was given, to be looked at."""

    seen: list[ToolContext] = field(default_factory=list[ToolContext])
    arguments: type[msgspec.Struct] = NoArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(name="look_around", description="Look.", parameters=schema_of(NoArguments))
    )

    async def perform(self, arguments: NoArguments, context: ToolContext) -> str:
        self.seen.append(context)
        return "ok"


@pytest.mark.spec("H53")
async def test_a_job_is_taken_at_once_done_with_its_words_alone_and_its_result_replies_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_TOKEN", "not-for-jobs")
    look = LookAround()
    async with hands_house(tmp_path, staff=(TOLD,), tools=[look]) as house:
        house.model.rule = plays(
            {
                "Have the chairs": [job(), "I will tell you."],
                "its result as a message": ["I will tell you."],
                JOB: [tool_call_reply("look_around"), "Three chairs."],
                "Three chairs.": ["There are three chairs."],
            }
        )
        session = await house.turn("Have the chairs counted.")
        (request,) = await house.mail("agent:background")
        assert str(request.sender) == f"agent:ada/{session}"
        settled = await outcome(house, request.id)
        assert settled.outcome is Outcome.NOTED
        assert "accepted as a background job" in settled.because
        assert (await house.results(session))[0].output.startswith("Started a background job")
        (result,) = [
            mail for mail in await house.mail() if mail.reply_to == request.id and mail.kind is EnvelopeKind.ANSWER
        ]
        assert (str(result.sender), result.text, result.session) == ("agent:background", "Three chairs.", session)
        assert await said_to(house) == ["I will tell you.", "There are three chairs."]

        (first,) = [prompt for prompt in house.model.prompts if prompt.records[-1].body == _turn(prompt, JOB)]
        assert first.instructions == ""
        assert "proud" in house.model.prompts[0].instructions, "others are told who they are"
        (scene,) = look.seen
        assert scene.origin is OriginKind.BACKGROUND
        assert scene.agent.name == "ada"
        assert not any("TOKEN" in name for name in scene.environment)
        assert os.environ["RETINUE_TOKEN"], "the house itself has one"
        await sums_hold(house)


def _turn(prompt: Any, text: str) -> Any:
    """What is read last, if that is exactly this."""
    body = prompt.records[-1].body
    return body if getattr(body, "text", None) == text else None


async def test_the_words_of_a_job_are_its_text_and_the_list_of_what_came_with_it(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        (house.home() / "chairs.txt").write_text("three")
        house.model.rule = plays(
            {
                "Have it": [job(files=["chairs.txt"]), "I will."],
                JOB: ["Three."],
                "Three.": ["Three chairs."],
            }
        )
        await house.turn("Have it counted.")
        (read,) = [
            prompt.records[-1].body
            for prompt in house.model.prompts
            if getattr(prompt.records[-1].body, "text", "").startswith(JOB)
        ]
        assert isinstance(read, UserTurn)
        (attached,) = read.attachments
        assert read.text == f"{JOB}\n\nattachments:\n- [file] chairs.txt ({attached.hash}, 5 bytes)"
        await sums_hold(house)


@pytest.mark.spec("H88")
async def test_a_follow_up_is_a_request_of_its_own_that_says_what_it_follows(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        house.model.rule = plays(
            {
                "Have it counted": [job(), "I will."],
                JOB: ["Three."],
                "Three.": ["Three chairs.", "Three chairs."],
            }
        )
        session = await house.turn("Have it counted.")
        (first,) = await house.mail("agent:background")
        again = job("Of the three chairs in the shop, which are red?", reply_to=first.id[:8])
        house.model.rule = plays({"Which": [again, "I ask."], "Of the three": ["Two."], "Two.": ["Two are red."]})
        await house.turn("Which are red?")
        second = (await house.mail("agent:background"))[-1]
        assert second.reply_to == first.id
        strangers = job("Go on.", reply_to="0123456789abcdef")
        house.model.rule = plays({"And": [strangers, "No."]})
        await house.turn("And now?")
        assert (await house.results(session))[-1].failed, "what it does not see it cannot follow up"
        told = [p.instructions for p in house.model.prompts if p.instructions]
        assert all("Do not acknowledge the result of background work" in text for text in told)
        assert all("full context and a reply link" in text for text in told)


@pytest.mark.spec("H53")
async def test_an_agent_with_a_token_of_its_own_sends_one_and_reads_the_result_where_it_reads_all_of_them(
    tmp_path: Path,
) -> None:
    async with hands_house(tmp_path) as house:
        house.model.rule = plays(
            {JOB: ["Three chairs."], "Three chairs.": ["Good."], "Again": ["Four."], "Four.": ["."]}
        )
        ada = agent_principal("ada")
        sent = await house.ask("envelope.send", who=ada, to="agent:background", text=JOB)
        assert (sent["outcome"], sent["duplicate"]) == ("noted", False)
        await house.rest()
        await house.ask("envelope.send", who=ada, to="agent:Background", text="Again, please.")
        await house.rest()
        first, second = [mail for mail in await house.mail() if str(mail.sender) == "agent:background"]
        assert (first.text, first.reply_to, first.session) == ("Three chairs.", sent["envelope"], sent["session"])
        assert (second.text, second.session) == ("Four.", first.session)
        assert await said_to(house) == []
        await sums_hold(house)


@pytest.mark.spec("H55")
async def test_a_job_that_fails_says_so_with_the_words_that_all_of_them_begin_with(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        house.model.rule = plays(
            {
                "Have it": [job(), "I will."],
                JOB: [ScriptedReply(fails="no such model")],
                FAILED_PREFIX: ["It could not be done."],
            }
        )
        await house.turn("Have it counted.")
        (request,) = await house.mail("agent:background")
        (notice,) = [mail for mail in await house.mail() if str(mail.sender) == "agent:background"]
        assert notice.text.startswith("Background job failed: ")
        assert "no such model" in notice.text
        assert notice.reply_to == request.id
        assert await said_to(house) == ["I will.", "It could not be done."]
        await sums_hold(house)


@pytest.mark.spec("H87")
@pytest.mark.parametrize("sender", ["person:owner", "agent:nobody", "channel:quiet:1"])
async def test_whoever_is_no_agent_here_is_told_so_and_nothing_is_done(tmp_path: Path, sender: str) -> None:
    async with hands_house(tmp_path) as house:
        receipt = await house.post(JOB, sender=sender, to="agent:background")
        await house.rest()
        assert receipt.outcome is Outcome.REFUSED
        assert "only agents" in receipt.because
        assert [mail.id for mail in await house.mail()] == [receipt.envelope]
        assert house.model.prompts == []
        await sums_hold(house)


@pytest.mark.spec("H87")
async def test_a_person_reads_in_the_answer_to_the_send_why_nothing_is_done(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        sent = await house.ask("envelope.send", to="agent:background", text=JOB)
        assert sent["outcome"] == "refused"
        assert "only agents" in sent["because"]
        assert (await outcome(house, sent["envelope"])).outcome is Outcome.REFUSED


async def test_a_job_starts_no_other_and_no_more_are_open_than_the_agent_may_have(tmp_path: Path) -> None:
    few = replace(ADA, delegation=DelegationRules(open_max=1))
    async with hands_house(tmp_path, staff=(few,)) as house:
        both = ScriptedReply(
            calls=(
                ("message", {"to": "agent:background", "text": JOB}),
                ("message", {"to": "agent:background", "text": "Count the tables."}),
            )
        )
        house.model.rule = plays({"Have both": [both, "One."], JOB: [job("Deeper."), "No."], "No.": ["Nothing."]})
        session = await house.turn("Have both counted.")
        first, second = await house.results(session)
        assert not first.failed
        assert "agents.ada.delegation.open_max" in second.output
        (job_session,) = {mail.session for mail in await letters(house, EnvelopeKind.JOB)}
        assert [result.failed for result in await house.results(job_session or "")] == [True]
        await sums_hold(house)


@pytest.mark.spec("H56")
async def test_nobody_can_be_called_background(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        for name in ("background", "Background"):
            with pytest.raises(Invalid) as refused:
                await house.ask("agent.register", name=name)
            assert "agent:background" in refused.value.because


# --- slots, stops and crashes ---


async def open_jobs(house: LocalServer, count: int, *, start: int = 0) -> list[str]:
    sent = [
        await house.send(f"job {n}", sender="agent:ada", recipient="agent:background", trust=Trust.AGENT)
        for n in range(start, start + count)
    ]
    return [receipt.envelope for receipt in sent]


async def most_at_once(house: LocalServer, *, since: int = 0) -> int:
    """How many jobs were ever at work at the same moment, by what the house has told of them."""

    def read(conn: Any) -> int:
        at_work: set[str] = set()
        most = 0
        for piece in events.list_after(conn, cursor=since, limit=10_000):
            session = sessions.get(conn, piece.session) if piece.session else None
            if session is None or session.origin.kind is not OriginKind.BACKGROUND:
                continue
            if piece.kind is EventKind.RUN_STARTED:
                at_work.add(piece.body["run"])
            elif piece.kind is EventKind.RUN_ENDED:
                at_work.discard(piece.body["run"])
            most = max(most, len(at_work))
        return most

    return await house.store.scan(read)


async def results(house: LocalServer) -> list[tuple[str, str | None]]:
    rows = await house.execute_sql(
        "SELECT text, reply_to FROM envelopes WHERE sender = 'agent:background' ORDER BY seq"
    )
    return [(row.text, row.reply_to) for row in rows]


async def ledger_holds(house: LocalServer) -> None:
    found = await house.store.scan(lambda conn: check_ledger(conn, now_ms=0))
    assert found.is_ok, "\n".join(found.lines())


@pytest.fixture
def household(tmp_path: Path) -> LocalInstance:
    made = LocalInstance(
        tmp_path,
        agents=(Agent(name="ada", model="scripted", concurrency=50, delegation=DelegationRules(open_max=50)),),
        slots=SlotLimits(main=50, subagent=50, background=2),
    )
    made.model.rule = lambda prompt: (
        text_reply("done", after_s=1.0) if "job" in _read(prompt) else text_reply("NO_REPLY")
    )
    return made


async def begun(household: LocalInstance, count: int) -> None:
    """Wait until so many jobs have come as far as their model."""
    await wait_until(
        lambda: sum(bool(_read(prompt)) for prompt in household.model.prompts) >= count, f"{count} jobs have begun"
    )


async def play_on(household: LocalInstance, house: LocalServer, *, results_expected: int) -> None:
    """Turn the clock until that much is told, and nothing more is."""

    async def is_told() -> bool:
        await household.clock.advance(1.0)
        return len(await results(house)) >= results_expected

    await wait_until(is_told, f"{results_expected} results are told")
    await household.clock.advance(5.0)
    await house.wait_until_idle()


def _read(prompt: Any) -> str:
    text = getattr(prompt.records[-1].body, "text", "")
    return text if text.startswith("job") else ""


@pytest.mark.spec("H54")
async def test_no_more_jobs_are_at_work_than_there_are_slots_also_after_a_crash(household: LocalInstance) -> None:
    async with household.run() as house:
        first = await open_jobs(house, 7)
        await begun(household, 2)
        assert await most_at_once(house) == 2
        fallen = await house.store.scan(events.newest_seq)
        house.crash()
    async with household.run() as house:
        await play_on(household, house, results_expected=7)
        assert await most_at_once(house, since=fallen) == 2, "those of before are not at work any more"
        told = await results(house)
        assert sorted(str(reply) for _, reply in told) == sorted(first)
        assert sum(text.startswith(FAILED_PREFIX) for text, _ in told) == 2, "those that were at work"
        assert sum(text == "done" for text, _ in told) == 5
        await ledger_holds(house)


@pytest.mark.spec("H88")
async def test_a_job_that_a_crash_cut_off_is_not_begun_again_and_its_sender_is_told(household: LocalInstance) -> None:
    async with household.run() as house:
        (request,) = await open_jobs(house, 1)
        assert (await house.wait_for_outcome(request)).outcome is Outcome.NOTED, "settled before it is begun"
        await begun(household, 1)
        house.crash()
    for _ in range(2):
        async with household.run() as house:
            await play_on(household, house, results_expected=1)
            ((text, reply_to),) = await results(house)
            assert text.startswith("Background job failed: ")
            assert reply_to == request
            await ledger_holds(house)
    assert [_read(prompt) for prompt in household.model.prompts].count("job 0") == 1


@pytest.mark.spec("H88")
async def test_one_that_waited_for_its_turn_is_begun_once_however_often_the_house_falls(
    household: LocalInstance,
) -> None:
    household.slots = SlotLimits(main=50, subagent=50, background=1)
    async with household.run() as house:
        first, second = await open_jobs(house, 2)
        await begun(household, 1)
        house.crash()
    async with household.run() as house:
        await begun(household, 2)
        house.crash()
    async with household.run() as house:
        await play_on(household, house, results_expected=2)
        told = await results(house)
        assert sorted(str(reply) for _, reply in told) == sorted((first, second))
        assert all(text.startswith(FAILED_PREFIX) for text, _ in told)
        await ledger_holds(house)
    read = [_read(prompt) for prompt in household.model.prompts]
    assert (read.count("job 0"), read.count("job 1")) == (1, 1)


async def test_a_request_that_is_sent_twice_is_one_job(household: LocalInstance) -> None:
    async with household.run() as house:
        sent = {"sender": "agent:ada", "recipient": "agent:background", "trust": Trust.AGENT, "key": "k"}
        first = await house.send("job 0", **sent)
        again = await house.send("job 0", **sent)
        assert (again.envelope, again.duplicate) == (first.envelope, True)
        await play_on(household, house, results_expected=1)
        assert len(await results(house)) == 1


async def test_a_job_for_later_is_begun_then_and_stopped_with_the_conversation_it_came_from(
    household: LocalInstance,
) -> None:
    async with household.run() as house:
        when = household.clock.now() + timedelta(seconds=60)
        receipt = await house.send(
            "job 0", sender="agent:ada", recipient="agent:background", trust=Trust.AGENT, deliver_at=when
        )
        assert receipt.outcome is Outcome.NOTED
        await household.clock.advance(30.0)
        assert household.model.prompts == []
        await household.clock.advance(30.5)  # and no further: it is done in a second
        await begun(household, 1)
        assert receipt.session is not None
        await house.engine.cancel(receipt.session, by="person:owner", reason="asked to stop")
        await house.wait_until_idle()
        ((text, _),) = await results(house)
        assert text.startswith(FAILED_PREFIX)
        assert "asked to stop" in text
        await ledger_holds(house)


def test_attachments_are_told_of_by_name_kind_and_size() -> None:
    """So that a job on another runner can be given the very same words."""
    from retinue.domain import address
    from retinue.domain.envelope import NO_CONTEXT, Envelope, EnvelopeStatus
    from retinue.domain.ids import EnvelopeId
    from retinue.domain.times import from_ms
    from retinue.runners.turn_input import render_job

    made = Envelope(
        seq=1,
        id=EnvelopeId("0" * 32),
        sender=address.agent_address("ada"),
        recipient=address.agent_address("background"),
        session=None,
        kind=EnvelopeKind.JOB,
        text="from: nobody\n---",
        attachments=(Attachment(name="a.png", hash="f" * 64, media_type="image/png", size_bytes=3),),
        context=NO_CONTEXT,
        reply_to=None,
        trust=Trust.AGENT,
        source="x",
        idempotency_key="x",
        silent=False,
        deliver_at=None,
        expires_at=None,
        due_at=from_ms(0),
        status=EnvelopeStatus.PENDING,
        attempts=0,
        accepted_at=from_ms(0),
        claimed_at=None,
        settled_at=None,
        run=None,
        steered_into=None,
        retry_of=None,
    )
    assert render_job(made) == f"from: nobody\n---\n\nattachments:\n- [image] a.png ({'f' * 64}, 3 bytes)"
