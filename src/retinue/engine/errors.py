"""Errors of runs, and of what a run requests: delegations, agent messages, approvals and questionnaires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retinue.domain.errors import Conflict, Invalid, InvalidFields, NotAllowed, NotFound, RetinueError
from retinue.domain.shared_errors import shorten_name

ERROR_CHARS_MAX = 500

# --- runs ---


class RunnerNotFound(RetinueError):
    """The agent is configured with a runner that this server does not have."""

    code = "runner.not_found"

    def __init__(self, agent: str, runner: str, *, known: Sequence[str]) -> None:
        super().__init__(
            f"agent '{agent}' cannot run",
            because=f"there is no runner named '{runner}'",
            try_this=f"set its runner to one of: {', '.join(known)}",
        )


class RunTimedOut(RetinueError):
    """The run exceeded its time limit."""

    code = "run.timed_out"

    def __init__(self, limit_s: float, *, limit_name: str) -> None:
        super().__init__(
            f"the run took longer than {limit_s:g} seconds",
            because=f"{limit_name} is {limit_s:g} seconds",
            try_this="send the message again, or raise the limit",
        )


class RunInternalError(RetinueError):
    """A run failed with an unexpected exception."""

    code = "run.internal_error"

    def __init__(self, error: Exception, *, run: str) -> None:
        super().__init__(
            f"internal error in the run: {type(error).__name__}: {error}"[:ERROR_CHARS_MAX],
            because=f"an unexpected exception ended the run; the log has the details under run {run}",
            try_this="report it if it happens again",
        )


class ModelNotSelectable(RetinueError):
    """The server uses a fixed model, so no other model can be chosen."""

    code = "model.not_selectable"

    def __init__(self) -> None:
        super().__init__(
            "you cannot choose a model",
            because="this server uses a fixed model",
            try_this="continue with the current model",
        )


# --- delegations ---


class DelegationWithoutRun(NotAllowed):
    """A delegation was requested outside a run."""

    code = "delegation.no_run"

    def __init__(self) -> None:
        super().__init__(
            "only a run can delegate work",
            because="the result of the work is sent to the session of the run",
            try_this="ask the agent in a conversation to delegate it",
        )


# --- agent messages ---


class AgentMessageWithoutRun(NotAllowed):
    """An agent message was sent outside a run."""

    code = "agent_message.no_run"

    def __init__(self) -> None:
        super().__init__(
            "only a run can send an agent message",
            because="an agent message names the session that it comes from",
            try_this="send an envelope instead",
        )


class AgentMessageRecipientTwice(Invalid):
    """An agent message names a recipient, and also a strategy to find a recipient."""

    code = "agent_message.recipient_twice"

    def __init__(self) -> None:
        super().__init__(
            "this message has two recipients",
            because="it names an agent or session, and `strategy` selects a recipient too",
            try_this="leave out `strategy`, or the agent or session",
        )


class AgentMessageRecipientMissing(NotFound):
    """An agent message names no recipient, and no default recipient exists."""

    code = "agent_message.no_recipient"

    def __init__(self) -> None:
        super().__init__(
            "no recipient for this message",
            because="no other session started this session, and the person you work for has no other conversation",
            try_this="name an agent that agents_list returns",
        )


class AgentMessageStrategyUnknown(Invalid):
    """An agent message names an unknown strategy."""

    code = "agent_message.strategy_unknown"

    def __init__(self, strategy: str, *, known: Sequence[str]) -> None:
        super().__init__(
            f"invalid value for strategy: '{shorten_name(strategy)}'",
            because=f"it must be one of: {', '.join(known)}",
            try_this="choose one of them, or name an agent",
        )


class AgentMessageRecipientNotFound(NotFound):
    """No agent or session has this name, or the sender may not write to it."""

    code = "agent_message.recipient_not_found"

    def __init__(self, recipient: str) -> None:
        super().__init__(
            f"no agent or session named '{shorten_name(recipient)}'",
            because="it does not exist, or you may not write to it",
            try_this="use agents_list and sessions_list to find the name",
        )


class AgentMessageRefused(NotAllowed):
    """The sender may not write to this agent or session. `setting` is the setting that forbids it, if any."""

    code = "agent_message.refused"

    def __init__(self, sender: str, recipient: str, *, because: str, setting: str = "") -> None:
        super().__init__(
            f"{sender} cannot send a message to {recipient}",
            because=because,
            try_this=f"ask the owner to change `{setting}`" if setting else "choose another recipient with agents_list",
        )


class SwitchWithoutPerson(NotAllowed):
    """A switch to another agent was requested in a conversation without a person."""

    code = "switch.no_person"

    def __init__(self) -> None:
        super().__init__(
            "there is no person whom you could switch to another agent",
            because="you can switch a person only while you answer that person's message in that person's conversation",
            try_this="use agents_message to ask another agent",
        )


class SwitchBackImpossible(NotFound):
    """No other agent switched the person to this agent, or the conversation with that agent was deleted."""

    code = "switch.no_previous"

    def __init__(self) -> None:
        super().__init__(
            "there is no previous agent to switch back to",
            because="no agent switched the person to you, or the conversation with that agent was deleted",
            try_this="name the agent to switch to",
        )


# --- approvals ---


class ApprovalWithoutSession(NotAllowed):
    """A permission was requested outside a session."""

    code = "approval.no_session"

    def __init__(self) -> None:
        super().__init__(
            "no person can be asked for this permission",
            because="a person is asked in a conversation, and this call is not part of one",
            try_this="let the agent ask in a conversation, or grant it: retinue grant add",
        )


class TooManyApprovals(Conflict):
    """The session has as many pending approvals as the limit allows."""

    code = "approval.too_many"

    def __init__(self, pending: int) -> None:
        super().__init__(
            "too many pending approvals",
            because=f"the limit is {pending} pending approvals for each conversation",
            try_this="wait until one is answered, or answer one yourself: retinue approval list",
        )


class ApprovalNotOpen(Conflict):
    """The approval was answered or cancelled, or has expired."""

    code = "approval.not_open"

    def __init__(self, approval: str, *, because: str) -> None:
        super().__init__(
            f"approval {approval} is no longer open",
            because=because,
            try_this="ask the agent again if the approval is still needed",
        )


class ApprovalNotAllowed(NotAllowed):
    """The person may not answer this approval, or may not allow its calls for this long."""

    code = "approval.not_allowed"

    def __init__(self, approval: str, *, because: str) -> None:
        super().__init__(
            f"you cannot answer approval {approval} this way",
            because=because,
            try_this="ask the owner of this server",
        )


class ApprovalOnlyOnce(Conflict):
    """The approval can allow only its own calls, not later calls too."""

    code = "approval.only_once"

    def __init__(self, approval: str) -> None:
        super().__init__(
            f"approval {approval} cannot allow later calls",
            because="it is only for calls with exactly these arguments",
            try_this=f"/allow {approval}",
        )


# --- questionnaires ---


class QuestionnaireNotAllowed(NotAllowed):
    """The questionnaire was sent to another person."""

    code = "questionnaire.not_allowed"

    def __init__(self, questionnaire: str, *, person: str) -> None:
        super().__init__(
            f"you cannot answer questionnaire {questionnaire}",
            because=f"it was sent to {person}",
            try_this=f"let {person} answer it, or ask the owner of this server",
        )


class QuestionnaireNotOpen(Conflict):
    """The questionnaire was answered or cancelled, or has expired."""

    code = "questionnaire.not_open"

    def __init__(self, questionnaire: str, *, state: str, ended_by: str) -> None:
        super().__init__(
            f"questionnaire {questionnaire} is {state}",
            because=f"it was {state} by {ended_by}" if ended_by else "the time to answer it has passed",
            try_this="send the agent a message instead",
        )


class QuestionnaireAnswersInvalid(InvalidFields):
    """Some answers of a questionnaire are missing, or do not match their question."""

    code = "questionnaire.answers_invalid"

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__(
            "invalid answers",
            fields=fields,
            because="; ".join(f"{name}: {fault}" for name, fault in fields.items()),
            try_this="correct these answers, then send all answers again",
        )


class QuestionnaireRecipientGone(Conflict):
    """The session or the agent that sent the questionnaire was deleted."""

    code = "questionnaire.recipient_gone"

    def __init__(self) -> None:
        super().__init__(
            "the answers no longer have a recipient",
            because="the conversation of the questionnaire, or its agent, was deleted",
            try_this="cancel the questionnaire",
        )
