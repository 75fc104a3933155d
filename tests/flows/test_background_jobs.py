"""`agent:background`: one job, acknowledged at once, run with its text alone, and reported exactly once."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from flows.team_instance import assert_ledger_is_ok, list_envelopes_of_kind, list_texts_to, outcome, scripted_rule
from flows.tools_instance import ADA, open_scripted_server
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

ADA_WITH_INSTRUCTIONS = replace(ADA, instructions="You are ada, and proud of it.")
JOB = "Count the chairs in the shop."


def background_job_call(text: str = JOB, **more: Any) -> ScriptedReply:
    return tool_call_reply("message", to="agent:background", text=text, **more)


class NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


@dataclass(slots=True)
class LookAround:
    """Records the context of its call."""

    contexts: list[ToolContext] = field(default_factory=list[ToolContext])
    arguments: type[msgspec.Struct] = NoArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(name="look_around", description="Look.", parameters=schema_of(NoArguments))
    )

    async def perform(self, arguments: NoArguments, context: ToolContext) -> str:
        self.contexts.append(context)
        return "ok"


@pytest.mark.spec("H53")
async def test_a_background_job_runs_with_only_its_text_and_its_result_replies_to_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_TOKEN", "not-for-jobs")
    look = LookAround()
    async with open_scripted_server(tmp_path, staff=(ADA_WITH_INSTRUCTIONS,), tools=[look]) as server:
        server.model.rule = scripted_rule(
            {
                "Have the chairs": [background_job_call(), "I will tell you."],
                "its result as a message": ["I will tell you."],
                JOB: [tool_call_reply("look_around"), "Three chairs."],
                "Three chairs.": ["There are three chairs."],
            }
        )
        session = await server.turn("Have the chairs counted.")
        (request,) = await server.mail("agent:background")
        assert str(request.sender) == f"agent:ada/{session}"
        settled = await outcome(server, request.id)
        assert settled.outcome is Outcome.NOTED
        assert "accepted as a background job" in settled.because
        assert (await server.results(session))[0].output.startswith("Started a background job")
        (result,) = [
            mail for mail in await server.mail() if mail.reply_to == request.id and mail.kind is EnvelopeKind.ANSWER
        ]
        assert (str(result.sender), result.text, result.session) == ("agent:background", "Three chairs.", session)
        assert await list_texts_to(server) == ["I will tell you.", "There are three chairs."]

        (first,) = [
            prompt for prompt in server.model.prompts if prompt.records[-1].body == _last_body_if_text(prompt, JOB)
        ]
        assert first.instructions == ""
        assert "proud" in server.model.prompts[0].instructions, "other agents have their instructions in the prompt"
        (tool_context,) = look.contexts
        assert tool_context.origin is OriginKind.BACKGROUND
        assert tool_context.agent.name == "ada"
        assert not any("TOKEN" in name for name in tool_context.environment)
        assert os.environ["RETINUE_TOKEN"], "the server itself has one"
        await assert_ledger_is_ok(server)


def _last_body_if_text(prompt: Any, text: str) -> Any:
    """The body of the last record, if it has exactly this text."""
    body = prompt.records[-1].body
    return body if getattr(body, "text", None) == text else None


async def test_the_prompt_of_a_background_job_is_its_text_and_a_list_of_its_attachments(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        (server.home() / "chairs.txt").write_text("three")
        server.model.rule = scripted_rule(
            {
                "Have it": [background_job_call(files=["chairs.txt"]), "I will."],
                JOB: ["Three."],
                "Three.": ["Three chairs."],
            }
        )
        await server.turn("Have it counted.")
        (read,) = [
            prompt.records[-1].body
            for prompt in server.model.prompts
            if getattr(prompt.records[-1].body, "text", "").startswith(JOB)
        ]
        assert isinstance(read, UserTurn)
        (attached,) = read.attachments
        assert read.text == f"{JOB}\n\nattachments:\n- [file] chairs.txt ({attached.hash}, 5 bytes)"
        await assert_ledger_is_ok(server)


@pytest.mark.spec("H88")
async def test_a_follow_up_background_job_references_the_job_it_replies_to(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        server.model.rule = scripted_rule(
            {
                "Have it counted": [background_job_call(), "I will."],
                JOB: ["Three."],
                "Three.": ["Three chairs.", "Three chairs."],
            }
        )
        session = await server.turn("Have it counted.")
        (first,) = await server.mail("agent:background")
        again = background_job_call("Of the three chairs in the shop, which are red?", reply_to=first.id[:8])
        server.model.rule = scripted_rule(
            {"Which": [again, "I ask."], "Of the three": ["Two."], "Two.": ["Two are red."]}
        )
        await server.turn("Which are red?")
        second = (await server.mail("agent:background"))[-1]
        assert second.reply_to == first.id
        strangers = background_job_call("Go on.", reply_to="0123456789abcdef")
        server.model.rule = scripted_rule({"And": [strangers, "No."]})
        await server.turn("And now?")
        assert (await server.results(session))[-1].failed, "an agent that does not see the job cannot list its result"
        told = [p.instructions for p in server.model.prompts if p.instructions]
        assert all("Do not acknowledge the result of background work" in text for text in told)
        assert all("full context and a reply link" in text for text in told)


@pytest.mark.spec("H53")
async def test_an_agents_token_can_start_background_jobs_whose_results_arrive_in_one_session(
    tmp_path: Path,
) -> None:
    async with open_scripted_server(tmp_path) as server:
        server.model.rule = scripted_rule(
            {JOB: ["Three chairs."], "Three chairs.": ["Good."], "Again": ["Four."], "Four.": ["."]}
        )
        ada = agent_principal("ada")
        sent = await server.ask("envelope.send", who=ada, to="agent:background", text=JOB)
        assert (sent["outcome"], sent["duplicate"]) == ("noted", False)
        await server.rest()
        await server.ask("envelope.send", who=ada, to="agent:Background", text="Again, please.")
        await server.rest()
        first, second = [mail for mail in await server.mail() if str(mail.sender) == "agent:background"]
        assert (first.text, first.reply_to, first.session) == ("Three chairs.", sent["envelope"], sent["session"])
        assert (second.text, second.session) == ("Four.", first.session)
        assert await list_texts_to(server) == []
        await assert_ledger_is_ok(server)


@pytest.mark.spec("H55")
async def test_a_failed_background_job_replies_with_the_standard_failure_prefix(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        server.model.rule = scripted_rule(
            {
                "Have it": [background_job_call(), "I will."],
                JOB: [ScriptedReply(fails="no such model")],
                FAILED_PREFIX: ["It could not be done."],
            }
        )
        await server.turn("Have it counted.")
        (request,) = await server.mail("agent:background")
        (notice,) = [mail for mail in await server.mail() if str(mail.sender) == "agent:background"]
        assert notice.text.startswith("Background job failed: ")
        assert "no such model" in notice.text
        assert notice.reply_to == request.id
        assert await list_texts_to(server) == ["I will.", "It could not be done."]
        await assert_ledger_is_ok(server)


@pytest.mark.spec("H87")
@pytest.mark.parametrize("sender", ["person:owner", "agent:nobody", "channel:quiet:1"])
async def test_a_background_job_from_a_sender_that_is_not_an_agent_is_refused(tmp_path: Path, sender: str) -> None:
    async with open_scripted_server(tmp_path) as server:
        receipt = await server.post(JOB, sender=sender, to="agent:background")
        await server.rest()
        assert receipt.outcome is Outcome.REFUSED
        assert "only agents" in receipt.because
        assert [mail.id for mail in await server.mail()] == [receipt.envelope]
        assert server.model.prompts == []
        await assert_ledger_is_ok(server)


@pytest.mark.spec("H87")
async def test_a_background_job_sent_by_a_person_is_refused_in_the_send_response(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        sent = await server.ask("envelope.send", to="agent:background", text=JOB)
        assert sent["outcome"] == "refused"
        assert "only agents" in sent["because"]
        assert (await outcome(server, sent["envelope"])).outcome is Outcome.REFUSED


async def test_a_background_job_cannot_start_another_and_open_jobs_are_limited_per_agent(tmp_path: Path) -> None:
    few = replace(ADA, delegation=DelegationRules(open_max=1))
    async with open_scripted_server(tmp_path, staff=(few,)) as server:
        both = ScriptedReply(
            calls=(
                ("message", {"to": "agent:background", "text": JOB}),
                ("message", {"to": "agent:background", "text": "Count the tables."}),
            )
        )
        server.model.rule = scripted_rule(
            {"Have both": [both, "One."], JOB: [background_job_call("Deeper."), "No."], "No.": ["Nothing."]}
        )
        session = await server.turn("Have both counted.")
        first, second = await server.results(session)
        assert not first.failed
        assert "agents.ada.delegation.open_max" in second.output
        (job_session,) = {mail.session for mail in await list_envelopes_of_kind(server, EnvelopeKind.JOB)}
        assert [result.failed for result in await server.results(job_session or "")] == [True]
        await assert_ledger_is_ok(server)


@pytest.mark.spec("H56")
async def test_an_agent_cannot_be_named_background(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        for name in ("background", "Background"):
            with pytest.raises(Invalid) as refused:
                await server.ask("agent.register", name=name)
            assert "agent:background" in refused.value.because


# --- slots, stops and crashes ---


async def send_jobs(server: LocalServer, count: int, *, start: int = 0) -> list[str]:
    sent = [
        await server.send(f"job {n}", sender="agent:ada", recipient="agent:background", trust=Trust.AGENT)
        for n in range(start, start + count)
    ]
    return [receipt.envelope for receipt in sent]


async def count_concurrent_jobs(server: LocalServer, *, since: int = 0) -> int:
    """The highest number of jobs that ran at the same time, counted from the stored events."""

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

    return await server.store.scan(read)


async def results(server: LocalServer) -> list[tuple[str, str | None]]:
    rows = await server.execute_sql(
        "SELECT text, reply_to FROM envelopes WHERE sender = 'agent:background' ORDER BY seq"
    )
    return [(row.text, row.reply_to) for row in rows]


async def assert_store_ledger_is_ok(server: LocalServer) -> None:
    found = await server.store.scan(lambda conn: check_ledger(conn, now_ms=0))
    assert found.is_ok, "\n".join(found.lines())


@pytest.fixture
def instance(tmp_path: Path) -> LocalInstance:
    made = LocalInstance(
        tmp_path,
        agents=(Agent(name="ada", model="scripted", concurrency=50, delegation=DelegationRules(open_max=50)),),
        slots=SlotLimits(main=50, subagent=50, background=2),
    )
    made.model.rule = lambda prompt: (
        text_reply("done", after_s=1.0) if "job" in _job_text(prompt) else text_reply("NO_REPLY")
    )
    return made


async def wait_until_jobs_started(instance: LocalInstance, count: int) -> None:
    """Wait until this many jobs have called their model."""
    await wait_until(
        lambda: sum(bool(_job_text(prompt)) for prompt in instance.model.prompts) >= count,
        f"{count} jobs have called the model",
    )


async def advance_until_results(instance: LocalInstance, server: LocalServer, *, results_expected: int) -> None:
    """Advance the clock until the expected results were sent, and no more."""

    async def have_results_arrived() -> bool:
        await instance.clock.advance(1.0)
        return len(await results(server)) >= results_expected

    await wait_until(have_results_arrived, f"{results_expected} results were sent")
    await instance.clock.advance(5.0)
    await server.wait_until_idle()


def _job_text(prompt: Any) -> str:
    text = getattr(prompt.records[-1].body, "text", "")
    return text if text.startswith("job") else ""


@pytest.mark.spec("H54")
async def test_concurrent_background_jobs_never_exceed_the_slots_even_after_a_crash(instance: LocalInstance) -> None:
    async with instance.run() as server:
        first = await send_jobs(server, 7)
        await wait_until_jobs_started(instance, 2)
        assert await count_concurrent_jobs(server) == 2
        crash_seq = await server.store.scan(events.newest_seq)
        server.crash()
    async with instance.run() as server:
        await advance_until_results(instance, server, results_expected=7)
        assert await count_concurrent_jobs(server, since=crash_seq) == 2, (
            "the jobs from before the crash do not run any more"
        )
        result = await results(server)
        assert sorted(str(reply) for _, reply in result) == sorted(first)
        assert sum(text.startswith(FAILED_PREFIX) for text, _ in result) == 2, "the jobs that were running"
        assert sum(text == "done" for text, _ in result) == 5
        await assert_store_ledger_is_ok(server)


@pytest.mark.spec("H88")
async def test_a_background_job_interrupted_by_a_crash_is_not_restarted_and_its_sender_is_notified(
    instance: LocalInstance,
) -> None:
    async with instance.run() as server:
        (request,) = await send_jobs(server, 1)
        assert (await server.wait_for_outcome(request)).outcome is Outcome.NOTED, (
            "its outcome is recorded before the job runs"
        )
        await wait_until_jobs_started(instance, 1)
        server.crash()
    for _ in range(2):
        async with instance.run() as server:
            await advance_until_results(instance, server, results_expected=1)
            ((text, reply_to),) = await results(server)
            assert text.startswith("Background job failed: ")
            assert reply_to == request
            await assert_store_ledger_is_ok(server)
    assert [_job_text(prompt) for prompt in instance.model.prompts].count("job 0") == 1


@pytest.mark.spec("H88")
async def test_a_queued_background_job_starts_only_once_across_repeated_crashes(
    instance: LocalInstance,
) -> None:
    instance.slots = SlotLimits(main=50, subagent=50, background=1)
    async with instance.run() as server:
        first, second = await send_jobs(server, 2)
        await wait_until_jobs_started(instance, 1)
        server.crash()
    async with instance.run() as server:
        await wait_until_jobs_started(instance, 2)
        server.crash()
    async with instance.run() as server:
        await advance_until_results(instance, server, results_expected=2)
        result = await results(server)
        assert sorted(str(reply) for _, reply in result) == sorted((first, second))
        assert all(text.startswith(FAILED_PREFIX) for text, _ in result)
        await assert_store_ledger_is_ok(server)
    read = [_job_text(prompt) for prompt in instance.model.prompts]
    assert (read.count("job 0"), read.count("job 1")) == (1, 1)


async def test_a_background_job_sent_twice_with_one_key_runs_once(instance: LocalInstance) -> None:
    async with instance.run() as server:
        sent = {"sender": "agent:ada", "recipient": "agent:background", "trust": Trust.AGENT, "key": "k"}
        first = await server.send("job 0", **sent)
        again = await server.send("job 0", **sent)
        assert (again.envelope, again.duplicate) == (first.envelope, True)
        await advance_until_results(instance, server, results_expected=1)
        assert len(await results(server)) == 1


async def test_a_delayed_background_job_starts_at_its_time_and_can_be_cancelled_by_its_session(
    instance: LocalInstance,
) -> None:
    async with instance.run() as server:
        when = instance.clock.now() + timedelta(seconds=60)
        receipt = await server.send(
            "job 0", sender="agent:ada", recipient="agent:background", trust=Trust.AGENT, deliver_at=when
        )
        assert receipt.outcome is Outcome.NOTED
        await instance.clock.advance(30.0)
        assert instance.model.prompts == []
        await instance.clock.advance(30.5)  # and not a longer time: the job ends within a second
        await wait_until_jobs_started(instance, 1)
        assert receipt.session is not None
        await server.engine.cancel(receipt.session, by="person:owner", reason="asked to stop")
        await server.wait_until_idle()
        ((text, _),) = await results(server)
        assert text.startswith(FAILED_PREFIX)
        assert "asked to stop" in text
        await assert_store_ledger_is_ok(server)


def test_the_text_of_a_background_job_lists_attachments_by_name_kind_and_size() -> None:
    """The rendered text is compared as a whole, so that a job on another runner can be given the same text."""
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
