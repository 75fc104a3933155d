"""Executes one run. Every exception ends here: it fails the run, never the server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from retinue.agents.agent_directory import ensure_workspace
from retinue.domain.address import AddressKind
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import EnvelopeKind
from retinue.domain.errors import RetinueError, StaleEpoch, StoreError
from retinue.domain.ids import RunId, short_id
from retinue.domain.ports import Clock, CrashPoints, RunObserver
from retinue.domain.record import Record
from retinue.domain.run import NO_RUN_REQUEST, RunRequest
from retinue.domain.session import SPAWNED_ORIGINS, SessionActivity
from retinue.domain.times import to_ms
from retinue.engine.approvals import suspend_run
from retinue.engine.context_reset import request_reset_if_too_long
from retinue.engine.errors import RunInternalError, RunnerNotFound, RunTimedOut
from retinue.engine.event_broadcast import EventBroadcast, NestedRun
from retinue.engine.journal import ApprovalAnswers, RunJournal
from retinue.engine.run_claim import ClaimSettings, claim_next_batch
from retinue.engine.run_context import ClaimedRun, NothingClaimed
from retinue.engine.run_finish import fail_run, finish_run
from retinue.engine.step_writer import PendingWrite
from retinue.engine.transcript_cache import TranscriptCache
from retinue.intake.accept import Wake
from retinue.intake.background_jobs import get_runner
from retinue.outbox.typing_and_previews import AnsweredMessage, ProgressDisplays, ProgressTell, RunProgress
from retinue.runners.base import RunAnswer, RunAssignment, Runner, Suspended
from retinue.store.agents import agents
from retinue.store.core.connection import PERMANENT_ERROR_CODES, Store
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.runs import delegations
from retinue.store.sessions import records, sessions

log = logging.getLogger(__name__)

SynthesizeVoice = Callable[[str, bool], Awaitable[tuple[str, Attachment | None]]]
"""Makes a voice message from an answer. The second argument is whether the answer replies to a voice message.

Returns the text to show, and the voice message or None.
"""


class RunEnd(Struct, frozen=True):
    """How the execution of a run ended.

    `next_claim` was claimed in the finishing commit. `more_due` means that the lane has more work.
    """

    wakes: tuple[Wake, ...] = ()
    next_claim: ClaimedRun | None = None
    more_due: bool = False


class RunWorker:
    """Executes one run at a time for each lane, from the claim to its end."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        runners: Mapping[str, Runner],
        broadcast: EventBroadcast,
        claim_settings: ClaimSettings,
        agent_directory_of: Callable[[str], Path],
        faults: CrashPoints,
        wake: Callable[[Wake], None],
        typing: ProgressDisplays | None = None,
        synthesize_voice: SynthesizeVoice | None = None,
    ) -> None:
        self._typing = typing
        self._synthesize_voice = synthesize_voice
        self._store = store
        self._clock = clock
        self._runners = runners
        self._broadcast = broadcast
        self._claim_settings = claim_settings
        self._agent_directory_of = agent_directory_of
        self._faults = faults
        self._wake = wake
        self.transcripts = TranscriptCache(store)

    async def execute(
        self,
        claim: ClaimedRun,
        *,
        next_run_id: RunId,
        has_new_envelopes: Callable[[], bool],
        is_contended: Callable[[], bool],
    ) -> RunEnd:
        """Execute a claimed run to its end.

        Raises only `StaleEpoch`, `StoreError` and cancellation. These leave the run in the store unchanged.
        """
        claim = self._with_delivery(claim)
        transcript = await self.transcripts.check_out(claim.session, claim.new_records)
        journal = RunJournal(
            claim,
            transcript,
            run_records=await self._read_run_records(claim),
            store=self._store,
            clock=self._clock,
            zone=self._claim_settings.zone,
            faults=self._faults,
            has_new_envelopes=has_new_envelopes,
            wake=self._wake,
        )
        if claim.envelopes and claim.envelopes[0].kind is EnvelopeKind.DELEGATION:
            await self._show_nested(claim)
        try:
            try:
                runner, assignment = self._assign(claim)
                async with self._time_limit(claim, assignment.request):
                    with self._progress_of(claim) as observer:
                        answer = await runner.take_turns(
                            assignment, journal, ApprovalAnswers(claim.approvals), observer
                        )
            except Suspended as suspended:
                ended = await self._suspend(journal, suspended)
            else:
                ended = await self._finish(journal, answer, next_run_id=next_run_id, is_contended=is_contended)
        except Exception as error:
            if _leaves_run_open(error):
                raise
            ended = await self._fail(journal, error)
        finally:
            self._broadcast.run_ended(claim.run.id)
        # Subagents rarely run again, so their contexts would only displace others.
        if journal.matches_store and claim.session.origin.kind not in SPAWNED_ORIGINS:
            self.transcripts.check_in(transcript, context_from=journal.claim.session.context_start_seq)
        return ended

    def _with_delivery(self, claim: ClaimedRun) -> ClaimedRun:
        """Add how the run's answer is displayed, and how it is delivered to a channel."""
        agent_display = self._claim_settings.defaults().display_options_of(claim.agent)
        channel = claim.run.sender if claim.run.sender.kind is AddressKind.CHANNEL else None
        manner = _request_of(claim).manner
        return replace(
            claim,
            display=manner.with_defaults(claim.session.options.manner).with_defaults(agent_display),
            reply_delivery=self._claim_settings.reply_delivery(channel.name) if channel is not None else None,
        )

    async def _show_nested(self, claim: ClaimedRun) -> None:
        """If a call is waiting for this run, show the run's activity to subscribers of that call's session."""
        asked = await self._store.read(partial(delegations.get, id_=claim.envelopes[0].id))
        if asked is not None and asked.wait_until is not None:
            self._broadcast.add_nested_run(
                NestedRun(session=asked.session, call=asked.call, agent=claim.agent.name, run=claim.run.id)
            )

    async def _read_run_records(self, claim: ClaimedRun) -> list[Record] | None:
        """Return the records of a resumed run from the store, if a compaction removed some of them from the context.

        Otherwise returns None.
        """
        if claim.new_records or claim.run.first_seq >= claim.session.context_start_seq:
            return None
        session, first, last = claim.session.id, claim.run.first_seq, claim.session.record_seq
        found, _ = await self._store.scan(lambda conn: records.read_range(conn, session, first=first, last=last))
        return [record for record in found if record.run == claim.run.id]

    async def _finish(
        self, journal: RunJournal, answer: RunAnswer, *, next_run_id: RunId, is_contended: Callable[[], bool]
    ) -> RunEnd:
        finished = await self._with_voice(journal.claim, answer)
        body = partial(
            _finish_and_claim,
            claim=journal.claim,
            pending=tuple(journal.pending_writes),
            result=finished,
            now_ms=self._now_ms(),
            next_run_id=None if is_contended() else next_run_id,
            settings=self._claim_settings,
        )
        return _without_wakes(await self._store.write(body, point="finish", then=self._wake_all))

    async def _with_voice(self, claim: ClaimedRun, result: RunAnswer) -> RunAnswer:
        """Add a voice message to an answer for a channel.

        The voice message is made before the commit, so that the stored answer is what is sent. If making it fails, the
        answer is text only.
        """
        if self._synthesize_voice is None or claim.reply_delivery is None or result.is_silent or not result.text:
            return result
        heard = [each for envelope in claim.envelopes for each in envelope.attachments]
        answers_voice = any(each.media_type.startswith("audio/") for each in heard)
        try:
            shown, voice = await self._synthesize_voice(result.text, answers_voice)
        except Exception as error:
            log.warning("answer not synthesized", exc_info=error, extra={"run": claim.run.id})
            return result
        return replace(result, text=shown, voice_message=voice)

    def _wake_all(self, end: RunEnd | None) -> None:
        """Send the wake-ups together with the commit.

        Otherwise a cancellation of the waiting task could delay them until the next scan of the
        store.
        """
        for wake in end.wakes if end is not None else ():
            self._wake(wake)

    async def _suspend(self, journal: RunJournal, suspended: Suspended) -> RunEnd:
        work, closings, now_ms, asking = (
            journal.claim,
            tuple(journal.pending_writes),
            self._now_ms(),
            self._claim_settings.approval_settings(),
        )

        def body(conn: sa.Connection) -> RunEnd:
            waits, wakes = suspend_run(
                conn, claim=work, pending=closings, suspended=suspended, now_ms=now_ms, settings=asking
            )
            return RunEnd(wakes, more_due=waits)

        return _without_wakes(await self._store.write(body, point="park", then=self._wake_all))

    def _assign(self, claim: ClaimedRun) -> tuple[Runner, RunAssignment]:
        """Return the runner of a run, and its assignment."""
        runner = self._runners.get(get_runner(claim.agent, claim.session.origin.kind))
        if runner is None:
            raise RunnerNotFound(claim.agent.name, claim.agent.runner, known=sorted(self._runners))
        home, defaults, acting = (
            self._agent_directory_of(claim.agent.name),
            self._claim_settings.defaults(),
            claim.acting_agent,
        )
        acting_home = home if acting is claim.agent else self._agent_directory_of(acting.name)
        return runner, RunAssignment(
            agent=claim.agent,
            session=claim.session,
            agent_directory=home,
            workspace_directory=ensure_workspace(
                defaults.workspace_of(acting, acting_home), agent_directory=acting_home
            ),
            delegating_agents=claim.delegating_agents,
            speakers=claim.speakers,
            requesters=claim.requesters,
            acting_agent=acting if acting_home is not home else None,
            acting_directory=acting_home if acting_home is not home else None,
            instructions_directory=defaults.workspace_of(claim.agent, home) if acting_home is not home else None,
            stored_calls=claim.stored_calls,
            request=_request_of(claim),
            display=claim.display,
        )

    @asynccontextmanager
    async def _time_limit(self, claim: ClaimedRun, request: RunRequest) -> AsyncGenerator[None]:
        """Raise `RunTimedOut` if the block takes longer than the run may."""
        limit_s = self._claim_settings.defaults().run_seconds_of(claim.agent)
        limit_name = "the agent's limit (run_seconds_max)"
        if request.seconds_max is not None and request.seconds_max < limit_s:
            limit_s, limit_name = request.seconds_max, "the limit of the request that started the run"
        limit = asyncio.timeout(None)
        loop = asyncio.get_running_loop()
        # A model that never answers must be stopped in the middle of a call. The limit uses the server's clock
        # and starts when the run was claimed or resumed: time spent suspended or stopped does not count.
        call_off = self._clock.call_later(limit_s, lambda: limit.reschedule(loop.time()))
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if not limit.expired():  # another timeout: of a model or a tool
                raise
            raise RunTimedOut(limit_s, limit_name=limit_name) from error
        finally:
            call_off()

    @contextmanager
    def _progress_of(self, claim: ClaimedRun) -> Generator[RunObserver]:
        """Yield the observer of a run. In the block, the channel of the run shows the typing indicator."""
        typing = self._show_typing(claim)
        if typing is None:
            yield self._broadcast
            return
        try:
            yield ProgressTell(self._broadcast, typing)
        finally:
            typing.end()

    def _show_typing(self, claim: ClaimedRun) -> RunProgress | None:
        """Show the typing indicator in the channel while a run works on a message from that channel."""
        if self._typing is None or claim.reply_delivery is None or not claim.envelopes:
            return None
        newest = claim.envelopes[-1]
        if newest.kind is not EnvelopeKind.MESSAGE or newest.sender != claim.run.sender:
            return None
        context = newest.context
        asked = AnsweredMessage(channel=newest.sender, message_id=context.platform_id, chat_type=context.chat_type)
        attendance = self._typing.create(claim.run.id, asked, claim.reply_delivery)
        if attendance is not None:
            attendance.start()
        return attendance

    async def _fail(self, journal: RunJournal, error: Exception) -> RunEnd:
        known = isinstance(error, RetinueError)
        log.log(
            logging.WARNING if known else logging.ERROR,
            "run failed",
            exc_info=None if known else error,
            extra={"run": journal.run.id, "agent": journal.claim.agent.name, "error": type(error).__name__},
        )
        failure = error if isinstance(error, RetinueError) else RunInternalError(error, run=short_id(journal.run.id))
        lines = (
            f"Something went wrong: {failure.sentence} [{failure.code}]",
            _because_line(failure),
            _try_line(failure),
        )
        text = "\n".join(line for line in lines if line)
        body = partial(
            fail_run,
            claim=journal.claim,
            pending=tuple(journal.pending_writes),
            now_ms=self._now_ms(),
            error=f"{failure.code}: {failure.sentence}",
            text=text,
        )
        failed = await self._store.write(
            lambda conn: RunEnd(body(conn), more_due=True), point="fail", then=self._wake_all
        )
        return _without_wakes(failed)

    def _now_ms(self) -> int:
        return to_ms(self._clock.now())


def _leaves_run_open(error: Exception) -> bool:
    """Whether an error leaves the run open in the store: another worker has claimed it, or the store failed."""
    return isinstance(error, StaleEpoch) or (isinstance(error, StoreError) and error.code not in PERMANENT_ERROR_CODES)


def _request_of(claim: ClaimedRun) -> RunRequest:
    return next((e.context.request for e in claim.envelopes if e.context.request), NO_RUN_REQUEST)


def _without_wakes(end: RunEnd) -> RunEnd:
    """Return the end of a run without its wake-ups, because they have already been sent."""
    return replace(end, wakes=())


def _because_line(error: RetinueError) -> str:
    return f"because: {error.because}" if error.because else ""


def _try_line(error: RetinueError) -> str:
    return f"try: {error.try_this}" if error.try_this else ""


def _finish_and_claim(
    conn: sa.Connection,
    *,
    claim: ClaimedRun,
    pending: tuple[PendingWrite, ...],
    result: RunAnswer,
    now_ms: int,
    next_run_id: RunId | None,
    settings: ClaimSettings,
) -> RunEnd:
    """Finish a run in one commit, which also claims the next batch unless another lane waits for this slot."""
    tx = Transaction(conn, now_ms)
    if not envelopes.has_due(conn, claim.session.id, tx.at_ms):
        # The usual case. A later envelope finds the session asleep and wakes it.
        wakes = finish_run(tx, claim, pending, result, wakefulness=SessionActivity.SLEEPING)
        request_reset_if_too_long(tx, claim.session, claim.agent, result.context_length, settings.session_settings())
        tx.close()
        return RunEnd(wakes)
    wakes = finish_run(tx, claim, pending, result, wakefulness=SessionActivity.ACTIVE)
    request_reset_if_too_long(tx, claim.session, claim.agent, result.context_length, settings.session_settings())
    # Read again: the settings of agent and session may have changed since the claim.
    session, agent = sessions.get(conn, claim.session.id), agents.find(conn, claim.agent.name)
    if next_run_id is None or session is None or agent is None:
        tx.close()
        return RunEnd(wakes, more_due=True)
    following = claim_next_batch(tx, session, agent, run_id=next_run_id, settings=settings)
    tx.close()
    if isinstance(following, NothingClaimed):
        return RunEnd((*wakes, *following.wakes), more_due=following.look_again or following.retry_after_s > 0)
    return RunEnd((*wakes, *following.wakes), next_claim=replace(following, wakes=()))
