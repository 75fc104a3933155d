"""The result status of a run, as operations show it."""

from __future__ import annotations

from enum import StrEnum

from retinue.domain.run import TIMED_OUT_CODES, Run, RunStatus
from retinue.store.runs import model_calls


class RunResultStatus(StrEnum):
    """How a run ended. `open` means that it has not ended yet."""

    OK = "ok"
    FAILOVER = "failover"  # answered by a fallback model
    COMPACTION = "compaction"  # answered after its context was compacted
    TIMEOUT = "timeout"
    ERROR = "error"
    OPEN = "open"


RUN_STATUS_BY_RESULT = {
    RunResultStatus.OK: RunStatus.COMPLETED,
    RunResultStatus.FAILOVER: RunStatus.COMPLETED,
    RunResultStatus.COMPACTION: RunStatus.COMPLETED,
    RunResultStatus.TIMEOUT: RunStatus.FAILED,
    RunResultStatus.ERROR: RunStatus.FAILED,
}


def classify_result(run: Run, calls: list[model_calls.RecordedModelCall]) -> RunResultStatus:
    if run.status.is_open:
        return RunResultStatus.OPEN
    if run.status is not RunStatus.COMPLETED:
        return RunResultStatus.TIMEOUT if (run.error or "").startswith(TIMED_OUT_CODES) else RunResultStatus.ERROR
    if any(call.next_action == "next_model" for call in calls):
        return RunResultStatus.FAILOVER
    return (
        RunResultStatus.COMPACTION
        if any(call.index < 0 and call.failure is None for call in calls)
        else RunResultStatus.OK
    )
