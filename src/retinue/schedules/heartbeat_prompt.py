"""Builds the prompt of a due heartbeat from the agent's checklist and tasks.

If there is nothing to do, no model is called. Untrusted content is left out, and the reason is
recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from retinue.agents.instruction_files import ReadWithTrust, read_instruction_file
from retinue.agents.instructions import InstructionFileState
from retinue.domain import heartbeat
from retinue.domain.agent import Agent
from retinue.domain.heartbeat import CHECKLIST_FILE, HeartbeatTask
from retinue.domain.ids import SessionId
from retinue.domain.ports import Clock, RunGate
from retinue.domain.schedule import (
    SCHEDULE_TEXT_BYTES_MAX,
    EveryTrigger,
    GateResult,
    Schedule,
    ScheduleSession,
    format_duration,
)
from retinue.domain.trust import Trust
from retinue.schedules.heartbeat_files import HeartbeatTaskFile, read_tasks

BUSY_CHECK_S_MIN, BUSY_CHECK_S_MAX = 1.0, 30.0  # seconds between checks of a busy session
BUSY_WAIT_S_MAX = 600.0
CONCURRENT_GATES_MAX = 4
BECAUSE_CHARS_MAX = 1_000
CHECKLIST_EMPTY = "empty: its checklist is empty"


class _CheckedTask(Struct, frozen=True):
    """A heartbeat task after its checks. `because` is empty if the task is due, or says why it is not."""

    task: HeartbeatTask
    output: str = ""  # untrusted output of its gate
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecklistReader:
    """Reads an agent's checklist and due tasks, and builds the prompt of its heartbeat from them."""

    clock: Clock
    read_file: ReadWithTrust
    is_busy: Callable[[SessionId], Awaitable[bool]]
    agent_directory_of: Callable[[str], Path]
    workspace_of: Callable[[Agent, Path], Path]
    run_gate: RunGate
    # returns why an agent may not run a command without approval, or an empty string
    gate_refusal: Callable[[Agent], str]
    redact: Callable[[str], str] = str
    _gate_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONCURRENT_GATES_MAX), repr=False)

    async def __call__(
        self, schedule: Schedule, agent: Agent, session: SessionId, *, wanted: tuple[str, ...], forced: bool
    ) -> GateResult:
        if not forced and (because := await self._busy_reason(schedule, session)):
            return GateResult(is_open=False, because=because)
        home = self.agent_directory_of(agent.name)
        filed = await read_tasks(home, self.read_file)
        if wanted:
            return await self._build_prompt(schedule, agent, session, _select_tasks(filed, wanted), "", forced=forced)
        file = await read_instruction_file(
            self.read_file,
            agent_directory=home,
            workspace=self.workspace_of(agent, home),
            name=CHECKLIST_FILE,
            redact=self.redact,
        )
        if file.state is InstructionFileState.UNTRUSTED and not filed:
            return GateResult(is_open=False, because=f"untrusted: {CHECKLIST_FILE} has untrusted content")
        checklist = "" if heartbeat.is_checklist_empty(file.text) else file.text
        asked_for = schedule.heartbeat is not None and schedule.heartbeat.asked_for
        if not checklist and not filed and (file.state is not InstructionFileState.MISSING or not asked_for):
            return GateResult(is_open=False, because=CHECKLIST_EMPTY)
        return await self._build_prompt(schedule, agent, session, filed, checklist, forced=forced)

    async def _busy_reason(self, schedule: Schedule, session: SessionId) -> str:
        """Wait until the session is idle, for at most half of the heartbeat's interval, up to a fixed maximum.

        Returns the reason to skip the heartbeat if the session is still busy, or an empty string.
        """
        every_s = schedule.when.seconds if isinstance(schedule.when, EveryTrigger) else BUSY_WAIT_S_MAX
        waited_s, longest_s = 0.0, min(BUSY_WAIT_S_MAX, every_s / 2)
        while await self.is_busy(session):
            if waited_s >= longest_s:
                return f"busy: its conversation was busy for {format_duration(int(waited_s))}"
            # Wait as long again as so far: short runs are not missed, and long ones are not polled often.
            wait_s = min(max(waited_s, BUSY_CHECK_S_MIN), BUSY_CHECK_S_MAX, longest_s - waited_s)
            await self.clock.sleep(wait_s)
            waited_s += wait_s
        return ""

    async def _build_prompt(
        self,
        schedule: Schedule,
        agent: Agent,
        session: SessionId,
        task_files: Sequence[HeartbeatTaskFile],
        checklist: str,
        *,
        forced: bool,
    ) -> GateResult:
        looked = await asyncio.gather(
            *(self._check_task(schedule, agent, session, each, forced) for each in task_files)
        )
        due = [each for each in looked if not each.because]
        left_out = "; ".join(f"{each.task.id}: {each.because}" for each in looked if each.because)
        if task_files and not due and not checklist:
            return GateResult(is_open=False, because=f"nothing is due. {left_out}"[:BECAUSE_CHARS_MAX])
        text = heartbeat.build_prompt(schedule.text, checklist, [each.task for each in due])
        if schedule.place is ScheduleSession.MAIN and heartbeat.OK_TOKEN not in text:
            text = f"{text}\n\n{heartbeat.OK_INSTRUCTION}"  # a dedicated session has this in its system prompt
        if len(text.encode()) > SCHEDULE_TEXT_BYTES_MAX:
            because = f"too large: the tasks that are due have more than {SCHEDULE_TEXT_BYTES_MAX:,} bytes"
            return GateResult(is_open=False, because=because)
        output = "\n\n".join(f"{each.task.id}:\n{each.output}" for each in due if each.output)
        return GateResult(is_open=True, text=text, output=output)

    async def _check_task(
        self, schedule: Schedule, agent: Agent, session: SessionId, task_file: HeartbeatTaskFile, forced: bool
    ) -> _CheckedTask:
        task = task_file.task
        if task_file.because or task_file.gate is None or forced:
            return _CheckedTask(task, because=task_file.because)
        if because := self.gate_refusal(agent):
            return _CheckedTask(task, because=f"gate: it was not run: {because}")
        # An agent that may write the file may have written its gate: it gets the trust level of that directory.
        asked = replace(schedule, name=task.id, gate=task_file.gate, trust=Trust.PRIVATE)
        async with self._gate_slots:
            result = await self.run_gate(asked, agent, session)
        if not result.is_open:
            return _CheckedTask(task, because=result.because)
        if result.output and result.trust is Trust.UNTRUSTED:
            return _CheckedTask(task, output=result.output)
        output = f"\n\n[Gate output]\n{result.output}" if result.output else ""
        return _CheckedTask(replace(task, text=f"{task.text}{output}"))


def _select_tasks(task_files: Sequence[HeartbeatTaskFile], wanted: tuple[str, ...]) -> list[HeartbeatTaskFile]:
    """Return the heartbeat tasks with the given ids. A task that no longer exists is included, with the reason."""
    by_id = {each.task.id: each for each in task_files}
    gone = "the task no longer exists"
    return [
        by_id.get(id_) or HeartbeatTaskFile(HeartbeatTask(id=id_, title=id_, text=""), because=gone)
        for id_ in dict.fromkeys(wanted)
    ]
