"""Errors that occur only in tests: scripted failures, and code that refuses to run outside a test."""

from __future__ import annotations

from retinue.domain.errors import Invalid
from retinue.domain.model import ModelFailed, ModelFailureKind


class CrashServerOutsideTest(Invalid):
    """The server of crash tests was started without `RETINUE_TEST=1`."""

    code = "testing.server_outside_test"

    def __init__(self) -> None:
        super().__init__(
            "this server is for crash tests only",
            because="its agents, tools and model exist only for tests that kill the server, and RETINUE_TEST is not 1",
            try_this="start a real server: retinue run",
        )


class PlantedBugOutsideTest(Invalid):
    """A bug was planted without `RETINUE_TEST=1`."""

    code = "testing.bug_outside_test"

    def __init__(self, bug: str) -> None:
        super().__init__(
            f"cannot plant the bug '{bug}' here",
            because="RETINUE_TEST is not 1, and a server with a planted bug loses messages",
            try_this="set RETINUE_TEST=1 in a test",
        )


class ScriptedFailure(ModelFailed):
    """The script of a `ScriptedModel` makes this call fail."""

    code = "model.scripted"

    def __init__(
        self, sentence: str, *, failure: ModelFailureKind = ModelFailureKind.SERVER, retry_after_s: float | None = None
    ) -> None:
        super().__init__(
            sentence,
            because="the script of the test contains this failure",
            try_this="retry",
            failure=failure,
            retry_after_s=retry_after_s,
        )


class ScriptEnded(ModelFailed):
    """A `ScriptedModel` was called more often than its script has replies."""

    code = "model.script_ended"

    def __init__(self) -> None:
        super().__init__(
            "the script has no more replies",
            because="the model was called once more",
            try_this="add a reply to the script of the test",
        )
