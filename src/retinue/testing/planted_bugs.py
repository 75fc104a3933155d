"""Ways to break the house on purpose, to see that those who watch over it would notice.

The bugs themselves are in `retinue.testing.crash_bugs`; nothing in a real house knows of them or can turn them on.
`plant` breaks a process for good, as a daemon under test; `planted` mends it again, as a test among others must.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from retinue.domain.errors import Invalid
from retinue.engine import delegations as handing
from retinue.engine import scheduler
from retinue.engine.journal import RunJournal
from retinue.engine.run_context import Append
from retinue.intake import external_callbacks
from retinue.intake.accept import Inbox
from retinue.store.runs import delegations
from retinue.store.schedules import schedules
from retinue.store.sessions import sessions
from retinue.testing.crash_bugs import BUGS


class Bug(StrEnum):
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


TOUCHED: tuple[tuple[Any, str], ...] = (
    (Inbox, "post"),
    (RunJournal, "perform"),
    (Append, "seq"),
    (sessions, "guard"),
    (sessions, "guard_step"),
    (handing, "_collect"),
    (handing, "delegation_id"),
    (delegations, "end"),
    (scheduler, "_let_go"),
    (schedules, "_go_on"),
    (schedules, "_pass_by"),
    (external_callbacks, "hear"),
    (external_callbacks, "_asked"),
)
"""What the bugs replace, and `planted` puts back."""


def plant(bug: str, *, environment: Mapping[str, str] = os.environ) -> None:
    """Break the house in this process, from here on. Refused unless `RETINUE_TEST=1` says that this is a test."""
    if environment.get("RETINUE_TEST") != "1":
        raise Invalid(
            f"the bug '{bug}' cannot be planted here",
            because="this is not a test, and a house with a planted bug loses mail",
            try_this="set RETINUE_TEST=1 if it is one",
            code="config.test-only",
        )
    BUGS[Bug(bug)]()


@contextmanager
def planted(bug: str, *, environment: Mapping[str, str] = os.environ) -> Generator[None]:
    """Break the house for a while."""
    sound: list[tuple[Any, str, Any]] = [(place, name, vars(place)[name]) for place, name in TOUCHED]
    try:
        plant(bug, environment=environment)
        yield
    finally:
        for place, name, body in sound:
            setattr(place, name, body)
