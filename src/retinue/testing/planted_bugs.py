"""Plants bugs in the server on purpose, to verify that the tests for these bugs detect them.

The bugs are in `retinue.testing.crash_bugs`. No code outside the tests can turn them on.
`plant_bug` changes a process for good, such as a server under test. `planted_bug` removes the bug
again, for a test that shares its process with others.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from retinue.engine import delegations as engine_delegations
from retinue.engine import scheduler
from retinue.engine.journal import RunJournal
from retinue.engine.run_context import RecordAppender
from retinue.intake import external_callbacks
from retinue.intake.accept import EnvelopeIntake
from retinue.store.runs import delegations
from retinue.store.schedules import schedules
from retinue.store.sessions import sessions
from retinue.testing.crash_bugs import BUGS
from retinue.testing.errors import PlantedBugOutsideTest


class Bug(StrEnum):
    """The bugs that can be planted and removed again."""

    ACKNOWLEDGE_BEFORE_COMMIT = "acknowledge-before-commit"
    EFFECT_BEFORE_INTENT = "effect-before-intent"
    EPOCH_NOT_CHECKED = "epoch-not-checked"
    ANSWER_READ_TWICE = "answer-read-twice"
    ANSWER_TO_ANOTHER_CALL = "answer-to-another-call"
    FAILURE_NOT_TOLD = "failure-not-told"
    SLOT_FIRED_TWICE = "slot-fired-twice"
    NEXT_NOT_MADE = "next-not-made"
    SKIP_NOT_TOLD = "skip-not-told"
    CALLBACK_HEARD_TWICE = "callback-heard-twice"
    CALLBACK_TO_ANOTHER_SESSION = "callback-to-another-session"


PATCHED_NAMES: tuple[tuple[Any, str], ...] = (
    (EnvelopeIntake, "accept"),
    (RunJournal, "tool_call"),
    (RecordAppender, "last_seq"),
    (sessions, "update_fenced"),
    (sessions, "update_step_fenced"),
    (engine_delegations, "_collect"),
    (engine_delegations, "delegation_id"),
    (delegations, "end"),
    (scheduler, "_release_envelope"),
    (schedules, "_continue_schedule"),
    (schedules, "_record_skipped"),
    (external_callbacks, "accept_callback"),
    (external_callbacks, "_find_request"),
)
"""The functions that the bugs replace, and that `planted_bug` restores."""


def plant_bug(bug: str, *, environment: Mapping[str, str] = os.environ) -> None:
    """Plant a bug in this process for good. Raises an error unless `RETINUE_TEST=1` is set."""
    if environment.get("RETINUE_TEST") != "1":
        raise PlantedBugOutsideTest(bug)
    BUGS[Bug(bug)]()


@contextmanager
def planted_bug(bug: str, *, environment: Mapping[str, str] = os.environ) -> Generator[None]:
    """Plant a bug, and remove it at the end of the block."""
    sound: list[tuple[Any, str, Any]] = [(place, name, vars(place)[name]) for place, name in PATCHED_NAMES]
    try:
        plant_bug(bug, environment=environment)
        yield
    finally:
        for place, name, body in sound:
            setattr(place, name, body)
