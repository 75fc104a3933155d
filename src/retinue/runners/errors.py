"""Errors of runners: one class for each code, with its sentence, reason and next step."""

from __future__ import annotations

from retinue.domain.errors import RetinueError
from retinue.domain.model import ModelFacts, ModelFailed, ModelFailureKind

# --- context ---


class WindowTooSmall(RetinueError):
    """The context window of the model is too small, so the model was not called."""

    code = "model.window_too_small"

    def __init__(self, facts: ModelFacts, *, tokens_min: int) -> None:
        super().__init__(
            f"the context window of {facts.ref} is too small: {facts.window_tokens:,} tokens",
            because=f"instructions, tools and a conversation need at least {tokens_min:,} tokens",
            try_this=f"choose another model, or set `window_tokens` of '{facts.ref}' if its window is larger",
        )


class CompactionTimedOut(ModelFailed):
    """The summary for a compaction was not finished within the time limit. The context is unchanged."""

    code = "context.compaction_timeout"

    def __init__(self, *, timeout_s: float) -> None:
        super().__init__(
            "the summary took too long",
            because=f"the limit is {timeout_s:g} seconds",
            try_this="raise context.compaction.timeout_s, or reset the context with `/new`",
            failure=ModelFailureKind.TIMEOUT,
            may_be_charged=True,
        )


# --- external agents ---


class ExternalAgentSilent(RetinueError):
    """An external agent has not answered."""

    code = "external.no_answer"

    def __init__(self, agent: str, *, because: str) -> None:
        super().__init__(
            f"the external agent {agent} did not answer",
            because=because,
            try_this=f"check that it is running at `agents.{agent}.external.url`; `retinue why ID` shows the attempts",
        )


class ExternalAgentHasNoTools(RetinueError):
    """A tool call was requested from an external agent, which has no tools of this server."""

    code = "external.no_tools"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"{agent} has no tools on this server",
            because="it is an external agent, which uses its own tools",
            try_this="ask another agent",
        )
