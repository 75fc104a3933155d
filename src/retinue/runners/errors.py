"""Errors of runners: one class for each code, with its sentence, reason and next step."""

from __future__ import annotations

from retinue.domain.errors import RetinueError
from retinue.domain.model import ModelFacts, ModelFailed, ModelFailureKind
from retinue.domain.record import Usage

# --- replies that cannot be used ---


class ReplyTooLong(ModelFailed):
    """A reply has more characters than the limit."""

    code = "model.reply_too_long"

    def __init__(self, model: str, *, chars_max: int) -> None:
        super().__init__(
            f"the reply of {model} is too long",
            because=f"the limit is {chars_max:,} characters",
            try_this="send the message again, and ask for less",
            failure=ModelFailureKind.MALFORMED,
            may_be_charged=True,
        )


class ReplyRefused(ModelFailed):
    """The model, or a filter of its provider, refused to answer."""

    code = "model.refused"

    def __init__(self, model: str, *, usage: Usage | None) -> None:
        super().__init__(
            f"{model} refused to answer",
            because="the model, or a content filter of its provider, refused the request",
            try_this="rephrase the message, or give the agent another model",
            failure=ModelFailureKind.CONTENT_FILTER,
            may_be_charged=True,
            usage=usage,
        )


class ReplyOnlyThinking(ModelFailed):
    """The model used all output tokens of its reply for thinking."""

    code = "model.only_thinking"

    def __init__(self, model: str, *, usage: Usage | None) -> None:
        super().__init__(
            f"{model} gave no answer",
            because="it used all output tokens for thinking",
            try_this="lower the agent's effort, or raise `output_tokens_max` of the model",
            failure=ModelFailureKind.MALFORMED,
            may_be_charged=True,
            usage=usage,
        )


class ReplyEmpty(ModelFailed):
    """A reply has neither text nor tool calls."""

    code = "model.empty"

    def __init__(self, model: str, *, usage: Usage | None) -> None:
        super().__init__(
            f"the reply of {model} is empty",
            because="it has neither text nor tool calls",
            try_this="send the message again",
            failure=ModelFailureKind.MALFORMED,
            may_be_charged=True,
            usage=usage,
        )


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
