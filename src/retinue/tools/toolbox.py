"""The tools of an agent: which are offered, which calls are allowed, and how calls are performed.

If a call fails, for example because of an unknown tool or invalid arguments, the model reads the
error as the result.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Struct

from retinue.config import Settings
from retinue.config.tools import ToolSettings
from retinue.domain.agent import Agent
from retinue.domain.approval import ApprovalState
from retinue.domain.decision import Decision, DecisionKind
from retinue.domain.display_options import Elevation
from retinue.domain.ids import RunId, SessionId
from retinue.domain.permission import AgentRights, Permission, add_permissions
from retinue.domain.ports import Clock, IdSource, RunApprovals
from retinue.domain.record import Record, least_trust_in
from retinue.domain.storable_text import make_storable
from retinue.domain.structs import replace
from retinue.domain.tool import RESULT_CHARS_MAX, Call, ToolEffect, ToolResult, ToolSpec, truncate_output
from retinue.domain.trust import Trust
from retinue.policy.limits.token_bucket import TokenBuckets
from retinue.policy.provenance.provenance_rules import ProvenancePolicy
from retinue.policy.provenance.provenance_values import decide_result_trust
from retinue.policy.tools.grants import find_missing_permissions
from retinue.policy.tools.tool_decision import ToolDecision, decide_tool_call
from retinue.policy.tools.tool_groups import UNAVAILABLE_TOOLS
from retinue.policy.tools.tool_policy import (
    PolicyLayer,
    ToolPolicyChain,
    ToolPolicyContext,
    build_layers,
    build_sender_layers,
)
from retinue.text.quantity import format_quantity
from retinue.text.untrusted_wrapper import is_wrapped, wrap_untrusted
from retinue.tools.base import (
    CallPending,
    ConfigurableTool,
    ConfirmedTool,
    PermissionedTool,
    SandboxedTool,
    Tool,
    ToolContext,
    ToolFailed,
    ToolOutput,
)
from retinue.tools.earlier_messages import EarlierOwnerTurns
from retinue.tools.grants import GrantCache
from retinue.tools.result_truncation import FullResultStore

if TYPE_CHECKING:
    from retinue.tools.argument_provenance import ProvenanceChecker

CACHED_CHAINS_MAX = 1_000
RATE_LIMITED_AGENTS_MAX = 10_000
DEFAULT_TOOL_SETTINGS = ToolSettings()

_P = TypeVar("_P")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnContext:
    """The context shared by all calls of a turn: the agent, the run, the permissions and the
    records.
    """

    agent: Agent
    session: SessionId
    run: RunId
    agent_directory: Path
    rights: AgentRights
    circumstances: ToolPolicyContext = ToolPolicyContext()
    context: Sequence[Record] = ()
    known_trust: Trust | None = None  # trust of the context, if it is already known
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    elevation: Elevation | None = None
    acting_agent: Agent | None = None  # the agent whose rights apply, if not `agent`
    trust: Trust = field(init=False)  # lowest trust in the context

    def __post_init__(self) -> None:
        object.__setattr__(self, "trust", self.known_trust or least_trust_in(self.context))

    def tool_context(
        self, call: Call, *, granted: Sequence[Permission] = (), can_use: Callable[[str], bool] = lambda _tool: True
    ) -> ToolContext:
        return ToolContext(
            agent=self.agent,
            session=self.session,
            run=self.run,
            call=call.id,
            agent_directory=self.agent_directory,
            rights=add_permissions(self.rights, granted) if granted else self.rights,
            origin=self.circumstances.origin,
            sender=self.circumstances.sender,
            requesters=self.circumstances.requesters,
            trust=self.trust,
            environment=self.environment,
            elevation=self.elevation,
            parent_agents=self.circumstances.parent_agents,
            acting_agent=self.acting_agent,
            can_use=can_use,
        )


class CallPlan(Struct, frozen=True, kw_only=True):
    """The decision on each call of one reply, made before any call is performed.

    `asked` are the calls that need an approval. `contexts` and `reasons` have an entry for each
    allowed call. `missing_permissions` are the permissions that the calls in `asked` need and that
    were not granted. `would_grant` are the permissions that a lasting approval would grant. The
    decision was based on `held_permissions` and `settings`.
    """

    allowed: tuple[Call, ...] = ()
    asked: tuple[Call, ...] = ()
    refused: tuple[ToolResult, ...] = ()
    because: str = ""
    missing_permissions: tuple[Permission, ...] = ()
    would_grant: tuple[Permission, ...] = ()
    contexts: dict[str, ToolContext]
    reasons: dict[str, str]
    held_permissions: tuple[Permission, ...] = ()
    settings: ToolSettings | None = None


class DirectCall(Struct, frozen=True):
    """The decision on a call that is made outside a run, and the context of the call."""

    decision: Decision
    context: ToolContext


_ChainAndSpecs = tuple[ToolPolicyChain, Sequence[ToolSpec]]


class _LastLookup(Struct, frozen=True):
    agent: Agent
    circumstances: ToolPolicyContext
    extra_layers: tuple[PolicyLayer, ...]
    result: _ChainAndSpecs


def refusal(call: Call, text: str, *, trust: Trust = Trust.PRIVATE) -> ToolResult:
    return ToolResult(
        call=call.id, tool=call.tool, output=truncate_output(make_storable(text)), failed=True, trust=trust
    )


class Toolbox:
    """Holds the tools of an instance, decides which calls are allowed, and performs them."""

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        clock: Clock | None = None,
        calls_per_minute: int = 0,
        settings: Callable[[], ToolSettings] = lambda: DEFAULT_TOOL_SETTINGS,
        grants: GrantCache | None = None,
        provenance_policy: Callable[[], ProvenancePolicy] | None = None,
        zone: ZoneInfo | None = None,
        earlier_turns: EarlierOwnerTurns | None = None,
        full_results: FullResultStore | None = None,
        ids: IdSource | None = None,
        redact: Callable[[str], str] = str,
        extra_layers: Callable[[Agent], Sequence[PolicyLayer]] = lambda _agent: (),
    ) -> None:
        """Create a toolbox. With a clock, each agent is limited to `calls_per_minute`; 0 means no limit.

        `redact` removes secrets from tool output. With `ids`, untrusted output is wrapped in
        markers.
        """
        self._clock = clock
        self._call_buckets = TokenBuckets(calls_per_minute, RATE_LIMITED_AGENTS_MAX)
        self._settings = settings
        self._grants = grants
        self._provenance_policy = provenance_policy
        self._zone = zone or ZoneInfo("UTC")
        self._earlier_turns = earlier_turns
        self._full_results = full_results
        self._ids = ids
        self._redact = redact
        self._extra_layers = extra_layers
        self._cached_settings: ToolSettings | None = None
        self._chains: dict[object, _ChainAndSpecs] = {}  # needed in every turn
        self._last_lookup: _LastLookup | None = None
        self.set_tools(tools)

    def limit_calls(self, per_minute: int) -> None:
        self._call_buckets.per_minute = per_minute

    @property
    def specs(self) -> Sequence[ToolSpec]:
        return [tool.spec for tool in self._tools.values()]

    def spec(self, name: str) -> ToolSpec | None:
        tool = self._tools.get(name)
        return tool.spec if tool else None

    def with_settings(
        self, settings: Settings, *, provenance_policy: Callable[[], ProvenancePolicy] | None = None
    ) -> Toolbox:
        """Return a toolbox with the same tools and other settings, to find out what these settings would change."""
        return Toolbox(
            [
                tool.with_settings(settings) if isinstance(tool, ConfigurableTool) else tool
                for tool in self._tools.values()
            ],
            clock=self._clock,
            settings=lambda: settings.tools,
            grants=self._grants,
            provenance_policy=provenance_policy or self._provenance_policy,
            zone=self._zone,
            earlier_turns=self._earlier_turns,
        )

    def set_tools(self, tools: Sequence[Tool]) -> None:
        """Replace all tools, after a plugin or an MCP server was added or removed."""
        self._tools = {tool.spec.name: tool for tool in tools}
        # Computed once, because every call needs it and isinstance on a protocol is slow.
        self._permissioned = _tools_implementing(tools, PermissionedTool)
        self._sandboxed = _tools_implementing(tools, SandboxedTool)
        self._confirmed = _tools_implementing(tools, ConfirmedTool)
        self._clear_cache()

    def _clear_cache(self) -> None:
        self._chains.clear()
        self._last_lookup = None

    # --- what is allowed ---

    def offered_specs(self, agent: Agent, circumstances: ToolPolicyContext) -> Sequence[ToolSpec]:
        return self._chain_and_specs(agent, circumstances)[1]

    def rule_chain(self, agent: Agent, circumstances: ToolPolicyContext) -> ToolPolicyChain:
        return self._chain_and_specs(agent, circumstances)[0]

    def _chain_and_specs(self, agent: Agent, circumstances: ToolPolicyContext) -> _ChainAndSpecs:
        settings = self._settings()
        if settings is not self._cached_settings or len(self._chains) >= CACHED_CHAINS_MAX:
            self._clear_cache()
            self._cached_settings = settings
        more = tuple(self._extra_layers(agent))  # from settings outside of [tools]
        latest = self._last_lookup  # a turn looks up the same agent in the same circumstances several times
        if (
            latest is not None
            and latest.agent is agent
            and latest.circumstances == circumstances
            and latest.extra_layers == more
        ):
            return latest.result
        above = (
            tuple(tuple(self._extra_layers(sender)) for sender in circumstances.parent_agents)
            if circumstances.parent_agents
            else ()
        )
        # The sender is not part of the key: most senders have the same rules, and each subagent has its own address.
        ruled = tuple(build_sender_layers(settings, circumstances))
        key = (agent.name, agent.tools, circumstances.key_without_sender, ruled, more, above)
        known = self._chains.get(key)
        if known is None:
            specs = self.specs
            chains = [
                ToolPolicyChain([*build_layers(settings, sender, circumstances), *theirs], specs)
                for sender, theirs in zip(circumstances.parent_agents, above, strict=True)
            ]
            chain = ToolPolicyChain([*build_layers(settings, agent, circumstances), *more], specs, parents=chains)
            known = self._chains[key] = (chain, [spec for spec in specs if not chain.decide(spec).is_denied])
        self._last_lookup = _LastLookup(agent, circumstances, more, known) if not circumstances.parent_agents else None
        return known

    async def evaluate_call(self, call: Call, turn: TurnContext) -> ToolDecision:
        """Return the full decision on one call.

        Policy is evaluated each time, so that a new rule also applies to calls approved before it.
        """
        return await self._evaluate_with(call, turn, await self._held_permissions(turn))

    async def decide_direct_call(self, call: Call, turn: TurnContext) -> DirectCall:
        """Decide whether to allow a call that is made outside a run, where no approval can be requested."""
        held = await self._held_permissions(turn)
        tool_decision = await self._evaluate_with(call, turn, held)
        return DirectCall(tool_decision.decision, self._tool_context(call, turn, held))

    async def _evaluate_with(self, call: Call, turn: TurnContext, held: Sequence[Permission]) -> ToolDecision:
        tool = self._tools[call.tool]
        arguments, _ = _parse_arguments(tool, call)
        await self._prepare_sandbox(call)
        return self._evaluate(tool, call, arguments, turn, held, await self._provenance_checker(turn))[0]

    def _tool_context(self, call: Call, turn: TurnContext, granted: Sequence[Permission]) -> ToolContext:
        return turn.tool_context(call, granted=granted, can_use=partial(self._can_use, turn))

    def _can_use(self, turn: TurnContext, name: str) -> bool:
        tool = self._tools.get(name)
        return tool is not None and not self.rule_chain(turn.agent, turn.circumstances).decide(tool.spec).is_denied

    async def _prepare_sandbox(self, call: Call) -> None:
        if (sandboxed := self._sandboxed.get(call.tool)) is not None:
            await sandboxed.prepare_sandbox()

    async def _held_permissions(self, turn: TurnContext) -> tuple[Permission, ...]:
        if self._grants is None:
            return ()
        return await self._grants.active_permissions(turn.agent.name, turn.session, turn.circumstances.origin)

    def _evaluate(
        self,
        tool: Tool,
        call: Call,
        arguments: Any | None,
        turn: TurnContext,
        held: Sequence[Permission],
        provenance: ProvenanceChecker | None,
    ) -> tuple[ToolDecision, tuple[Permission, ...]]:
        """Return the decision on a call, and the permissions that the call needs and that were not granted.

        If a person allows the call, the call gets these permissions. `arguments` is None if they
        are invalid: such a call needs nothing, because it will be refused.
        """
        chain = self.rule_chain(turn.agent, turn.circumstances)
        if arguments is None or chain.decide(tool.spec).is_denied:
            return decide_tool_call(chain, tool.spec, held=held), ()
        context = turn.tool_context(call, granted=held)
        permissioned, sandboxed = self._permissioned.get(call.tool), self._sandboxed.get(call.tool)
        confirmed = self._confirmed.get(call.tool)
        lacks = (
            find_missing_permissions(permissioned.required_permissions(arguments, context), context.rights, held)
            if permissioned is not None
            else ()
        )
        approved_context = turn.tool_context(call, granted=(*held, *lacks)) if lacks else context
        tool_decision = decide_tool_call(
            chain,
            tool.spec,
            held=held,
            missing=lacks,
            provenance=provenance.decide(tool.spec, _canonicalize(call, arguments)) if provenance is not None else None,
            sandbox=sandboxed.decide_sandbox(arguments, approved_context) if sandboxed is not None else None,
            confirmation=confirmed.decide_confirmation(arguments, context) if confirmed is not None else None,
        )
        return tool_decision, lacks

    async def _provenance_checker(self, turn: TurnContext) -> ProvenanceChecker | None:
        """Return the provenance checker of a turn.

        None if the whole context is trusted, because provenance then affects no call.
        """
        if self._provenance_policy is None or turn.trust is not Trust.UNTRUSTED:
            return None
        context = list(turn.context)
        if self._earlier_turns is not None:
            context = [*await self._earlier_turns(turn.session, context), *context]
        today = self._clock.now().astimezone(self._zone).date() if self._clock is not None else None
        from retinue.tools.argument_provenance import ProvenanceChecker  # needed only for untrusted content

        return ProvenanceChecker(self._provenance_policy(), context, today=today, canonicalize=self._canonicalize_call)

    def _canonicalize_call(self, call: Call) -> Call:
        tool = self._tools.get(call.tool)
        arguments = _parse_arguments(tool, call)[0] if tool is not None else None
        return _canonicalize(call, arguments) if arguments is not None else call

    async def decide(self, calls: Sequence[Call], ask: RunApprovals, turn: TurnContext) -> CallPlan:
        allowed: list[Call] = []
        asked: list[Call] = []
        closed: list[ToolResult] = []
        because: list[str] = []
        gives: list[Permission] = []
        would_grant: list[tuple[Permission, ...]] = []
        contexts: dict[str, ToolContext] = {}
        reasons: dict[str, str] = {}
        rules = self._settings()
        held = await self._held_permissions(turn) if calls else ()
        provenance = await self._provenance_checker(turn) if calls else None
        for call in calls:
            tool = self._tools.get(call.tool)
            if tool is None:
                known = ", ".join(spec.name for spec in self.offered_specs(turn.agent, turn.circumstances)) or "none"
                why = f": {UNAVAILABLE_TOOLS[call.tool]}" if call.tool in UNAVAILABLE_TOOLS else ""
                closed.append(refusal(call, f"No tool named '{call.tool}'{why}. Your tools are: {known}."))
                continue
            arguments, invalid = _parse_arguments(tool, call)
            await self._prepare_sandbox(call)
            tool_decision, lacks = self._evaluate(tool, call, arguments, turn, held, provenance)
            decision = tool_decision.decision
            if invalid and not decision.is_denied:
                closed.append(refusal(call, invalid))  # do not ask a person about a call that cannot be performed
                continue
            # An existing answer wins, even if the rules would no longer ask. A denial stays a denial, and a pending
            # approval resumes in a separate run.
            match decision.kind, ask.state_of(call):
                case DecisionKind.DENY, _:
                    closed.append(refusal(call, _describe_denial(decision)))
                case DecisionKind.ASK, None:
                    asked.append(call)
                    because.append(decision.because)
                    gives += lacks
                    would_grant.append(tool_decision.would_grant)
                case _, None:
                    allowed.append(call)
                    contexts[call.id] = self._tool_context(call, turn, held)
                    reasons[call.id] = decision.because
                case _, ApprovalState.ALLOWED if beyond := find_missing_permissions(
                    lacks, turn.rights, ask.permissions_of(call)
                ):
                    # The same arguments may need more by now: a link changed, or a grant was revoked.
                    named = ", ".join(str(each) for each in beyond)
                    closed.append(
                        refusal(
                            call,
                            f"Not done: it needs {named}, which the approval does not cover. Call it again.",
                        )
                    )
                case _, ApprovalState.ALLOWED:
                    allowed.append(call)
                    contexts[call.id] = self._tool_context(call, turn, (*held, *lacks))
                    # By id only: the approval's text quotes the arguments, and the audit log is permanent.
                    reasons[call.id] = f"approval {ask.short_id_of(call)} allows it"
                case _, ApprovalState.OPEN:
                    closed.append(
                        refusal(call, f"Waiting for approval {ask.short_id_of(call)}. Continue without it for now.")
                    )
                case _, state:
                    closed.append(refusal(call, f"Not done: the approval {ask.short_id_of(call)} is {state}."))
        return CallPlan(
            allowed=tuple(allowed),
            asked=tuple(asked),
            refused=tuple(closed),
            because="; ".join(dict.fromkeys(because)),
            missing_permissions=tuple(dict.fromkeys(gives)),
            # If one call can only be allowed once, all calls of this approval can only be allowed once.
            would_grant=tuple(dict.fromkeys(each for some in would_grant for each in some)) if all(would_grant) else (),
            contexts=contexts,
            reasons=reasons,
            held_permissions=held,
            settings=rules,
        )

    async def is_still_valid(self, plan: CallPlan, turn: TurnContext) -> bool:
        """Return whether grants and settings are unchanged since the plan was made."""
        return self._settings() is plan.settings and await self._held_permissions(turn) == plan.held_permissions

    # --- performing ---

    async def perform(self, call: Call, context: ToolContext, *, is_recorded: bool = True) -> ToolResult:
        """Perform one call.

        `is_recorded` means that a record stores the result, so it can be read in full later.
        """
        tool = self._tools[call.tool]
        if self._clock is not None and self._call_buckets.per_minute:
            wait_s = math.ceil(self._call_buckets.take(context.agent.name, self._clock.now().timestamp()))
            if wait_s:
                most = self._call_buckets.per_minute
                return refusal(
                    call,
                    f"Not done: {context.agent.name} can make {format_quantity(most, 'call')} per minute. "
                    f"Try again in {wait_s} s.",
                )
        arguments, invalid = _parse_arguments(tool, call)
        if invalid:
            return refusal(call, invalid)
        timeout = asyncio.timeout(tool.spec.timeout_s)
        try:
            async with timeout:
                output = await tool.perform(arguments, context)
        except msgspec.ValidationError as error:
            return refusal(call, _describe_invalid_arguments(call, error))
        except CallPending:
            if tool.spec.is_safely_read_only:  # a read-only tool has no step that could stay open
                return refusal(call, f"'{call.tool}' failed: a read-only tool cannot wait.")
            raise
        except ToolFailed as error:  # a built-in tool's error text is our own
            return refusal(
                call, self._redact(str(error)), trust=_trust_of_failure(tool.spec, is_own_text=_is_built_in(tool.spec))
            )
        except Exception as error:  # noqa: BLE001 - the model reads about a tool that raised an error
            if timeout.expired():
                return refusal(call, f"'{call.tool}' timed out after {tool.spec.timeout_s:g} s.")
            why = f"'{call.tool}' failed: {type(error).__name__}: {error}"
            return refusal(call, self._redact(why), trust=_trust_of_failure(tool.spec, is_own_text=False))
        if isinstance(output, str):
            output = ToolOutput(text=output)
        text = make_storable(self._redact(output.text))
        trust = output.trust or self._decide_output_trust(tool.spec, text)
        shown, whole = (
            await self._full_results.truncate(text)
            if self._full_results is not None and is_recorded
            else (truncate_output(text), "")
        )
        if trust is Trust.UNTRUSTED and self._ids is not None and not is_wrapped(shown):
            body, cut, notice = shown.rpartition("\n[cut: ") if len(text) > RESULT_CHARS_MAX else (shown, "", "")
            shown = wrap_untrusted(body, id=self._ids.new(), source={"tool": call.tool}) + cut + notice
        return ToolResult(
            call=call.id,
            tool=call.tool,
            output=shown,
            failed=output.failed,
            trust=trust,
            attachments=output.attachments,
            whole=whole,
        )

    def _decide_output_trust(self, spec: ToolSpec, text: str) -> Trust:
        if self._provenance_policy is None:
            return Trust.UNTRUSTED if ToolEffect.READS_UNTRUSTED in spec.effects else Trust.PRIVATE
        return decide_result_trust(self._provenance_policy(), spec, text)


def _tools_implementing(tools: Sequence[Tool], protocol: type[_P]) -> dict[str, _P]:
    """Return the tools that implement a protocol, by name.

    Each class is checked once, because most tools share a class.
    """
    fitting = {kind for kind in {type(tool) for tool in tools} if issubclass(kind, protocol)}
    return {tool.spec.name: cast("_P", tool) for tool in tools if type(tool) in fitting}


def _parse_arguments(tool: Tool, call: Call) -> tuple[Any | None, str]:
    """Return the parsed arguments of a call, or None and what is wrong with them."""
    try:
        return msgspec.convert(call.arguments, tool.arguments), ""
    except msgspec.ValidationError as error:
        return None, _describe_invalid_arguments(call, error)


def _describe_invalid_arguments(call: Call, error: msgspec.ValidationError) -> str:
    return f"Invalid arguments for '{call.tool}': {error}."


def _canonicalize(call: Call, arguments: Any) -> Call:
    """Return the call as the tool parses it: aliases resolved and default values left out."""
    if not isinstance(arguments, msgspec.Struct):  # an MCP tool: its arguments have no struct
        return call
    given: dict[str, Any] = msgspec.to_builtins(arguments)
    for known in msgspec.structs.fields(arguments):
        if not known.required and known.encode_name in given and known.default is not msgspec.UNSET:
            default = known.default
            if default is msgspec.NODEFAULT and known.default_factory is not msgspec.NODEFAULT:
                default = known.default_factory()
            if given[known.encode_name] == msgspec.to_builtins(default):
                del given[known.encode_name]
    return replace(call, arguments=given)


def _is_built_in(spec: ToolSpec) -> bool:
    return ":" not in spec.source


def _trust_of_failure(spec: ToolSpec, *, is_own_text: bool) -> Trust:
    """Return the trust of an error text. The error text of an external tool is untrusted content."""
    return Trust.UNTRUSTED if ToolEffect.READS_UNTRUSTED in spec.effects and not is_own_text else Trust.PRIVATE


def _describe_denial(decision: Decision) -> str:
    where = f" (settings: {decision.setting_key})" if decision.setting_key else ""
    return f"Not allowed: {decision.because}{where}."
