"""Builds the prompt of a due heartbeat from the agent's checklist and tasks.

If nothing is due, no model is called. Untrusted content is left out, with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from retinue.agents.instruction_files import Look, take_now
from retinue.agents.instructions import FileState
from retinue.domain import heartbeat
from retinue.domain.agent import Agent
from retinue.domain.heartbeat import CHECKLIST, Task
from retinue.domain.ids import SessionId
from retinue.domain.ports import AskGate, Clock
from retinue.domain.schedule import TEXT_BYTES_MAX, Every, GateSaid, Place, Schedule, spell_out
from retinue.domain.trust import Trust
from retinue.schedules.heartbeat_files import Filed, read_all

BUSY_S_MIN, BUSY_S_MAX = 1.0, 30.0  # seconds between checks of a busy session
BUSY_WAIT_S_MAX = 600.0
GATES_AT_ONCE_MAX = 4
BECAUSE_CHARS_MAX = 1_000
EMPTY = "empty: nothing is on its checklist"


class _Due(Struct, frozen=True):
    """A task that is due, or the reason why it is not."""

    task: Task
    output: str = ""  # untrusted output of its gate
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checklists:
    """Reads the checklist and tasks for one heartbeat at a time."""

    clock: Clock
    look: Look
    is_busy: Callable[[SessionId], Awaitable[bool]]
    home_of: Callable[[str], Path]
    workspace_of: Callable[[Agent, Path], Path]
    gates: AskGate
    # returns why an agent may not run a command without approval, or an empty string
    why_no_gate: Callable[[Agent], str]
    mask: Callable[[str], str] = str
    _asking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(GATES_AT_ONCE_MAX), repr=False)

    async def __call__(
        self, schedule: Schedule, agent: Agent, session: SessionId, *, wanted: tuple[str, ...], forced: bool
    ) -> GateSaid:
        if not forced and (because := await self._why_busy(schedule, session)):
            return GateSaid(open=False, because=because)
        home = self.home_of(agent.name)
        filed = await read_all(home, self.look)
        if wanted:
            return await self._ask_for(schedule, agent, session, _among(filed, wanted), "", forced=forced)
        file = await take_now(
            self.look, home=home, workspace=self.workspace_of(agent, home), name=CHECKLIST, mask=self.mask
        )
        if file.state is FileState.UNTRUSTED and not filed:
            return GateSaid(open=False, because=f"untrusted: {CHECKLIST} holds words from outside")
        checklist = "" if heartbeat.is_empty(file.text) else file.text
        asked_for = schedule.heartbeat is not None and schedule.heartbeat.asked_for
        if not checklist and not filed and (file.state is not FileState.MISSING or not asked_for):
            return GateSaid(open=False, because=EMPTY)
        return await self._ask_for(schedule, agent, session, filed, checklist, forced=forced)

    async def _why_busy(self, schedule: Schedule, session: SessionId) -> str:
        """Wait until the session is idle, but not without limit and not into the next occurrence.

        Returns the reason if it stayed busy.
        """
        every_s = schedule.when.seconds if isinstance(schedule.when, Every) else BUSY_WAIT_S_MAX
        waited_s, longest_s = 0.0, min(BUSY_WAIT_S_MAX, every_s / 2)
        while await self.is_busy(session):
            if waited_s >= longest_s:
                return f"busy: its conversation had something else to do for {spell_out(int(waited_s))}"
            # Wait as long again as before: short runs are not missed, and long ones are not polled often.
            wait_s = min(max(waited_s, BUSY_S_MIN), BUSY_S_MAX, longest_s - waited_s)
            await self.clock.sleep(wait_s)
            waited_s += wait_s
        return ""

    async def _ask_for(
        self,
        schedule: Schedule,
        agent: Agent,
        session: SessionId,
        filed: Sequence[Filed],
        checklist: str,
        *,
        forced: bool,
    ) -> GateSaid:
        looked = await asyncio.gather(*(self._due(schedule, agent, session, each, forced) for each in filed))
        due = [each for each in looked if not each.because]
        left_out = "; ".join(f"{each.task.id}: {each.because}" for each in looked if each.because)
        if filed and not due and not checklist:
            return GateSaid(open=False, because=f"nothing is due. {left_out}"[:BECAUSE_CHARS_MAX])
        text = heartbeat.prompt_of(schedule.text, checklist, [each.task for each in due])
        if schedule.place is Place.MAIN and heartbeat.TOKEN not in text:
            text = f"{text}\n\n{heartbeat.OTHERWISE}"  # a dedicated session has this in its system prompt
        if len(text.encode()) > TEXT_BYTES_MAX:
            because = f"too much: what is due has more than {TEXT_BYTES_MAX:,} bytes"
            return GateSaid(open=False, because=because)
        output = "\n\n".join(f"{each.task.id}:\n{each.output}" for each in due if each.output)
        return GateSaid(open=True, text=text, output=output)

    async def _due(self, schedule: Schedule, agent: Agent, session: SessionId, filed: Filed, forced: bool) -> _Due:
        task = filed.task
        if filed.because or filed.gate is None or forced:
            return _Due(task, because=filed.because)
        if because := self.why_no_gate(agent):
            return _Due(task, because=f"gate: it was not run, {because}")
        # An agent that may write the file may have written its gate: it gets the trust of that directory.
        asked = replace(schedule, name=task.id, gate=filed.gate, trust=Trust.PRIVATE)
        async with self._asking:
            said = await self.gates(asked, agent, session)
        if not said.open:
            return _Due(task, because=said.because)
        if said.output and said.trust is Trust.UNTRUSTED:
            return _Due(task, output=said.output)
        output = f"\n\n[Gate output]\n{said.output}" if said.output else ""
        return _Due(replace(task, text=f"{task.text}{output}"))


def _among(filed: Sequence[Filed], wanted: tuple[str, ...]) -> list[Filed]:
    """Return the wanted tasks. A task that no longer exists is returned with the reason."""
    by_id = {each.task.id: each for each in filed}
    gone = "there is no such task any more"
    return [by_id.get(id_) or Filed(Task(id=id_, title=id_, text=""), because=gone) for id_ in dict.fromkeys(wanted)]
