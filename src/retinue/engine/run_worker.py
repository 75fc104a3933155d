"""Execute one run. Every exception ends here: it fails the run, never the server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from retinue.agents.agent_directory import ensure_workspace
from retinue.domain.address import AddressKind
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import Kind
from retinue.domain.errors import RetinueError, Stale, StoreError
from retinue.domain.ids import RunId
from retinue.domain.ports import Clock, Faults
from retinue.domain.record import Record
from retinue.domain.run import NO_REQUEST, RunRequest
from retinue.domain.session import SENT_OUT, Wakefulness
from retinue.domain.times import to_ms
from retinue.engine.approvals import park
from retinue.engine.context_reset import note_length
from retinue.engine.event_broadcast import Live, Within
from retinue.engine.journal import Answers, RunJournal
from retinue.engine.run_claim import Terms, claim_next
from retinue.engine.run_context import Nothing, Work
from retinue.engine.run_finish import fail, finish
from retinue.engine.step_writer import Unwritten
from retinue.engine.transcript_cache import Transcripts
from retinue.intake.accept import Wake
from retinue.intake.background_jobs import runner_of
from retinue.outbox.typing_and_previews import Asked, Attendance, Attended, Presence
from retinue.runners.base import Assignment, Finished, Parked, Runner
from retinue.store.agents import agents
from retinue.store.core.connection import HOPELESS, Store
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes
from retinue.store.runs import delegations
from retinue.store.sessions import records, sessions

log = logging.getLogger(__name__)

Speak = Callable[[str, bool], Awaitable[tuple[str, Attachment | None]]]
"""Of an answer, and whether it answers a voice message: what is shown of it, and a voice message, or none."""


class Ended(Struct, frozen=True):
    """How the execution of a run ended.

    `next_claim` was claimed in the finishing commit; `more_due`: the lane has more.
    """

    wakes: tuple[Wake, ...] = ()
    next: Work | None = None
    more: bool = False


class Watch:
    """Executes one run at a time for each lane, from the claim to its end."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        runners: Mapping[str, Runner],
        live: Live,
        terms: Terms,
        homes: Callable[[str], Path],
        faults: Faults,
        wake: Callable[[Wake], None],
        presence: Presence | None = None,
        speak: Speak | None = None,
    ) -> None:
        self._presence = presence
        self._speak = speak
        self._store = store
        self._clock = clock
        self._runners = runners
        self._live = live
        self._terms = terms
        self._homes = homes
        self._faults = faults
        self._wake = wake
        self.transcripts = Transcripts(store)

    async def over(
        self, work: Work, *, next_run: RunId, has_mail: Callable[[], bool], contended: Callable[[], bool]
    ) -> Ended:
        """Execute a run.

        Raises only `Stale`, `StoreError` and cancellation. These leave the run in the store
        unchanged.
        """
        request = _request_of(work)
        house = self._terms.defaults().manner_of(work.agent)
        room = work.run.sender if work.run.sender.kind is AddressKind.CHANNEL else None
        work = replace(
            work,
            manner=request.manner.over(work.session.mind.manner).over(house),
            words=self._terms.words(room.name) if room is not None else None,
        )
        transcript = await self.transcripts.take(work.session, work.fresh)
        journal = RunJournal(
            work,
            transcript,
            own=await self._own(work),
            store=self._store,
            clock=self._clock,
            zone=self._terms.zone,
            faults=self._faults,
            has_mail=has_mail,
            wake=self._wake,
        )
        if work.envelopes and work.envelopes[0].kind is Kind.DELEGATION:
            await self._nest(work)
        try:
            ended = await self._work(journal, next_run=next_run, contended=contended)
        finally:
            self._live.ended(work.run.id)
        # Subagents rarely run again, so their contexts would only displace others.
        if journal.is_whole and work.session.origin.kind not in SENT_OUT:
            self.transcripts.give_back(transcript, context_from=journal.work.session.context_from)
        return ended

    async def _nest(self, work: Work) -> None:
        """If a call waits for this run, shows the run's activity to subscribers of that call's session."""
        asked = await self._store.read(partial(delegations.get, id_=work.envelopes[0].id))
        if asked is not None and asked.wait_until is not None:
            self._live.nest(Within(session=asked.session, call=asked.call, agent=work.agent.name, run=work.run.id))

    async def _own(self, work: Work) -> list[Record] | None:
        """Read the run's records if they are not all in its context: it was compacted and then interrupted."""
        if work.fresh or work.run.first_seq >= work.session.context_from:
            return None
        session, first, last = work.session.id, work.run.first_seq, work.session.record_seq
        found, _ = await self._store.scan(lambda conn: records.read(conn, session, first=first, last=last))
        return [record for record in found if record.run == work.run.id]

    async def _work(self, journal: RunJournal, *, next_run: RunId, contended: Callable[[], bool]) -> Ended:
        try:
            return await self._to_its_end(journal, next_run=next_run, contended=contended)
        except Exception as error:
            if isinstance(error, Stale) or (isinstance(error, StoreError) and error.code not in HOPELESS):
                raise
            return await self._fail(journal, error)

    async def _to_its_end(self, journal: RunJournal, *, next_run: RunId, contended: Callable[[], bool]) -> Ended:
        try:
            finished = await self._take_turns(journal.work, journal)
        except Parked as parked:
            return await self._park(journal, parked)
        finished = await self._spoken(journal.work, finished)
        body = partial(
            _finish_and_claim,
            work=journal.work,
            closings=tuple(journal.closings),
            finished=finished,
            now_ms=self._now_ms(),
            next_run=None if contended() else next_run,
            terms=self._terms,
        )
        return _without_wakes(await self._store.write(body, point="finish", then=self._wake_all))

    async def _spoken(self, work: Work, finished: Finished) -> Finished:
        """Add a voice message to an answer for a channel.

        It is made before the commit, so that the stored answer is the one sent. If it fails, the
        text remains.
        """
        if self._speak is None or work.words is None or finished.silent or not finished.text:
            return finished
        heard = [each for envelope in work.envelopes for each in envelope.attachments]
        answers_voice = any(each.media_type.startswith("audio/") for each in heard)
        try:
            shown, voice = await self._speak(finished.text, answers_voice)
        except Exception as error:
            log.warning("answer not spoken", exc_info=error, extra={"run": work.run.id})
            return finished
        return replace(finished, text=shown, voice=voice)

    def _wake_all(self, ended: Ended | None) -> None:
        """Send the wake-ups together with the commit.

        The waiting task may be cancelled at this moment, and the recipients would then learn of the
        envelope much later.
        """
        for wake in ended.wakes if ended is not None else ():
            self._wake(wake)

    async def _park(self, journal: RunJournal, parked: Parked) -> Ended:
        work, closings, now_ms, asking = journal.work, tuple(journal.closings), self._now_ms(), self._terms.asking()

        def body(conn: sa.Connection) -> Ended:
            waits, wakes = park(conn, work=work, closings=closings, parked=parked, now_ms=now_ms, asking=asking)
            return Ended(wakes, more=waits)

        return _without_wakes(await self._store.write(body, point="park", then=self._wake_all))

    async def _take_turns(self, work: Work, journal: RunJournal) -> Finished:
        runner = self._runners.get(runner_of(work.agent, work.session.origin.kind))
        if runner is None:
            raise RetinueError(
                f"{work.agent.name} cannot work here",
                because=f"there is no runner '{work.agent.runner}'",
                try_this=f"give the agent one of: {', '.join(sorted(self._runners))}",
                code="runner.not-found",
            )
        home, defaults, acting = self._homes(work.agent.name), self._terms.defaults(), work.acting
        ground = home if acting is work.agent else self._homes(acting.name)
        assignment = Assignment(
            agent=work.agent,
            session=work.session,
            home=home,
            place=ensure_workspace(defaults.workspace_of(acting, ground), home=ground),
            senders=work.senders,
            speakers=work.speakers,
            requesters=work.requesters,
            acting=acting if ground is not home else None,
            ground=ground if ground is not home else None,
            told_from=defaults.workspace_of(work.agent, home) if ground is not home else None,
            stored=work.stored,
            request=_request_of(work),
            manner=work.manner,
        )
        limit_s, given_by = defaults.run_seconds_of(work.agent), "this agent's limit (run_seconds_max)"
        given_s = assignment.request.seconds_max
        if given_s is not None and given_s < limit_s:
            limit_s, given_by = given_s, "what it was given by whoever sent it out"
        attendance = self._attend(work)
        tell = Attended(self._live, attendance) if attendance is not None else self._live
        limit = asyncio.timeout(None)
        loop = asyncio.get_running_loop()
        # A model that never answers must be stopped in the middle of a call. The limit uses the server's clock
        # and starts when the run was claimed or resumed: time spent suspended or stopped does not count.
        call_off = self._clock.later(limit_s, lambda: limit.reschedule(loop.time()))
        try:
            async with limit:
                return await runner.work(assignment, journal, Answers(work.approvals), tell)
        except TimeoutError as error:
            if not limit.expired():  # another timeout: of a model or a tool
                raise
            raise RetinueError(
                f"this run took longer than {limit_s:g} seconds",
                because=f"that is {given_by}",
                try_this="send it again, or raise the limit",
                code="run.timed-out",
            ) from error
        finally:
            call_off()
            if attendance is not None:
                attendance.end()

    def _attend(self, work: Work) -> Attendance | None:
        """Show typing in the channel while the run works. Only for a run over that channel's own message."""
        if self._presence is None or work.words is None or not work.envelopes:
            return None
        newest = work.envelopes[-1]
        if newest.kind is not Kind.MESSAGE or newest.sender != work.run.sender:
            return None
        context = newest.context
        asked = Asked(room=newest.sender, message_id=context.platform_id, chat_type=context.chat_type)
        attendance = self._presence.attend(work.run.id, asked, work.words)
        if attendance is not None:
            attendance.begin()
        return attendance

    async def _fail(self, journal: RunJournal, error: Exception) -> Ended:
        known = isinstance(error, RetinueError)
        log.log(
            logging.WARNING if known else logging.ERROR,
            "run failed",
            exc_info=None if known else error,
            extra={"run": journal.run.id, "agent": journal.work.agent.name, "error": type(error).__name__},
        )
        if isinstance(error, RetinueError):
            sentence, code = error.sentence, error.code
            advice = "\n".join(line for line in (_because(error), _try(error)) if line)
        else:
            sentence, code = f"{type(error).__name__}: {error}"[:500], "run.broke"
            advice = ""
        text = "\n".join(line for line in (f"Something went wrong: {sentence} [{code}]", advice) if line)
        body = partial(
            fail,
            work=journal.work,
            closings=tuple(journal.closings),
            now_ms=self._now_ms(),
            error=f"{code}: {sentence}",
            text=text,
        )
        failed = await self._store.write(lambda conn: Ended(body(conn), more=True), point="fail", then=self._wake_all)
        return _without_wakes(failed)

    def _now_ms(self) -> int:
        return to_ms(self._clock.now())


def _request_of(work: Work) -> RunRequest:
    return next((e.context.request for e in work.envelopes if e.context.request), NO_REQUEST)


def _without_wakes(ended: Ended) -> Ended:
    """Return the end without its wake-ups, which were already sent."""
    return replace(ended, wakes=())


def _because(error: RetinueError) -> str:
    return f"because: {error.because}" if error.because else ""


def _try(error: RetinueError) -> str:
    return f"try: {error.try_this}" if error.try_this else ""


def _finish_and_claim(
    conn: sa.Connection,
    *,
    work: Work,
    closings: tuple[Unwritten, ...],
    finished: Finished,
    now_ms: int,
    next_run: RunId | None,
    terms: Terms,
) -> Ended:
    """The finishing commit. It also claims the next batch, unless another lane waits for this slot."""
    page = Page(conn, now_ms)
    if not envelopes.any_due(conn, work.session.id, page.at_ms):
        # The usual case. A later envelope finds the session asleep and wakes it.
        wakes = finish(page, work, closings, finished, wakefulness=Wakefulness.SLEEPING)
        note_length(page, work.session, work.agent, finished.context_length, terms.sessions())
        page.close()
        return Ended(wakes)
    wakes = finish(page, work, closings, finished, wakefulness=Wakefulness.ACTIVE)
    note_length(page, work.session, work.agent, finished.context_length, terms.sessions())
    # Read again: the settings of agent and session may have changed since the claim.
    session, agent = sessions.get(conn, work.session.id), agents.find(conn, work.agent.name)
    if next_run is None or session is None or agent is None:
        page.close()
        return Ended(wakes, more=True)
    following = claim_next(page, session, agent, run_id=next_run, terms=terms)
    page.close()
    if isinstance(following, Nothing):
        return Ended((*wakes, *following.wakes), more=following.again or following.after_s > 0)
    return Ended((*wakes, *following.wakes), next=replace(following, wakes=()))
