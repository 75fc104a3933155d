"""The tools of an agent: which are offered, which calls are allowed, and how calls are performed.

Every failure of a call is a result that the model reads: an unknown tool, invalid arguments, an
error.
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
from retinue.domain.decision import Decision, Verdict
from retinue.domain.display_options import Elevation
from retinue.domain.ids import RunId, SessionId
from retinue.domain.permission import Permission, Rights, with_granted
from retinue.domain.ports import Ask, Clock, Ids
from retinue.domain.record import Record, least_believed
from retinue.domain.storable_text import storable
from retinue.domain.structs import replace
from retinue.domain.tool import RESULT_CHARS_MAX, Call, Effect, ToolResult, ToolSpec, clipped
from retinue.domain.trust import Trust
from retinue.policy.limits.token_bucket import Buckets
from retinue.policy.provenance.provenance_rules import OriginPolicy
from retinue.policy.provenance.provenance_values import label
from retinue.policy.tools.grants import missing
from retinue.policy.tools.tool_decision import Judgement, judge
from retinue.policy.tools.tool_groups import ABSENT
from retinue.policy.tools.tools import Chain, Circumstances, Layer, by_sender, layers_for
from retinue.text.untrusted_wrapper import is_wrapped, wrap
from retinue.tools.base import Confirmed, Output, Pending, Reaching, Ruled, Scene, Tool, ToolFailed, Walled
from retinue.tools.earlier_messages import EarlierWords
from retinue.tools.grants import Grants
from retinue.tools.result_truncation import Wholes

if TYPE_CHECKING:
    from retinue.tools.argument_provenance import Reading

CHAINS_REMEMBERED_MAX = 1_000
AGENTS_REMEMBERED_MAX = 10_000
NO_RULES = ToolSettings()

_P = TypeVar("_P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """The context shared by all calls of a turn: the agent, the run, the permissions and the
    records.
    """

    agent: Agent
    session: SessionId
    run: RunId
    home: Path
    rights: Rights
    where: Circumstances = Circumstances()
    context: Sequence[Record] = ()
    believed: Trust | None = None  # trust of the context, if it is already known
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    elevated: Elevation | None = None
    acting: Agent | None = None  # the agent whose rights apply, if not `agent`
    trust: Trust = field(init=False)  # lowest trust in the context

    def __post_init__(self) -> None:
        object.__setattr__(self, "trust", self.believed or least_believed(self.context))

    def scene(
        self, call: Call, *, granted: Sequence[Permission] = (), can_use: Callable[[str], bool] = lambda _tool: True
    ) -> Scene:
        return Scene(
            agent=self.agent,
            session=self.session,
            run=self.run,
            call=call.id,
            home=self.home,
            rights=with_granted(self.rights, granted) if granted else self.rights,
            origin=self.where.origin,
            sender=self.where.sender,
            requesters=self.where.requesters,
            trust=self.trust,
            environment=self.environment,
            elevated=self.elevated,
            senders=self.where.senders,
            acting=self.acting,
            can_use=can_use,
        )


class Plan(Struct, frozen=True, kw_only=True):
    """The decision on each call of one reply, made before any call is performed.

    `contexts` and `reasons` cover the allowed calls. `missing_permissions` are what the asked calls
    need beyond what was granted. `would_grant` is what a lasting approval would grant.
    `held_permissions` and `settings` are what the decision was based on.
    """

    allowed: tuple[Call, ...] = ()
    asked: tuple[Call, ...] = ()
    closed: tuple[ToolResult, ...] = ()
    because: str = ""
    gives: tuple[Permission, ...] = ()
    would_grant: tuple[Permission, ...] = ()
    scenes: dict[str, Scene]
    reasons: dict[str, str]
    held: tuple[Permission, ...] = ()
    rules: ToolSettings | None = None


class Direct(Struct, frozen=True):
    """The decision on a call outside of a run, and its context."""

    decision: Decision
    scene: Scene


_Known = tuple[Chain, Sequence[ToolSpec]]


class _Latest(Struct, frozen=True):
    asked_by: Agent
    where: Circumstances
    more: tuple[Layer, ...]
    known: _Known


def refusal(call: Call, why: str, *, trust: Trust = Trust.PRIVATE) -> ToolResult:
    return ToolResult(call=call.id, tool=call.tool, output=clipped(storable(why)), failed=True, trust=trust)


class Toolbox:
    """Holds the tools of an instance, decides calls and performs them."""

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        clock: Clock | None = None,
        calls_per_minute: int = 0,
        settings: Callable[[], ToolSettings] = lambda: NO_RULES,
        grants: Grants | None = None,
        origin: Callable[[], OriginPolicy] | None = None,
        zone: ZoneInfo | None = None,
        earlier: EarlierWords | None = None,
        wholes: Wholes | None = None,
        ids: Ids | None = None,
        mask: Callable[[str], str] = str,
        more: Callable[[Agent], Sequence[Layer]] = lambda _agent: (),
    ) -> None:
        """With a clock, limit each agent to `calls_per_minute`; 0 means no limit.

        `redact` removes secrets from tool output. With `ids`, untrusted output is wrapped in
        markers.
        """
        self._clock = clock
        self._calls = Buckets(calls_per_minute, AGENTS_REMEMBERED_MAX)
        self._settings = settings
        self._grants = grants
        self._origin = origin
        self._zone = zone or ZoneInfo("UTC")
        self._earlier = earlier
        self._wholes = wholes
        self._ids = ids
        self._mask = mask
        self._more = more
        self._ruled_by: ToolSettings | None = None
        self._chains: dict[object, _Known] = {}  # needed in every turn
        self._latest: _Latest | None = None
        self.bring(tools)

    def limit_calls(self, per_minute: int) -> None:
        self._calls.per_minute = per_minute

    @property
    def specs(self) -> Sequence[ToolSpec]:
        return [tool.spec for tool in self._tools.values()]

    def spec(self, name: str) -> ToolSpec | None:
        tool = self._tools.get(name)
        return tool.spec if tool else None

    def under(self, settings: Settings, *, origin: Callable[[], OriginPolicy] | None = None) -> Toolbox:
        """Return the same tools with other settings, to find out what these would change."""
        return Toolbox(
            [tool.under(settings) if isinstance(tool, Ruled) else tool for tool in self._tools.values()],
            clock=self._clock,
            settings=lambda: settings.tools,
            grants=self._grants,
            origin=origin or self._origin,
            zone=self._zone,
            earlier=self._earlier,
        )

    def bring(self, tools: Sequence[Tool]) -> None:
        """Replace all tools, after a plugin or an MCP server was added or removed."""
        self._tools = {tool.spec.name: tool for tool in tools}
        # Computed once, because every call needs it and isinstance on a protocol is slow.
        self._reaching = _by_protocol(tools, Reaching)
        self._walled = _by_protocol(tools, Walled)
        self._confirmed = _by_protocol(tools, Confirmed)
        self._forget()

    def _forget(self) -> None:
        self._chains.clear()
        self._latest = None

    # --- what is allowed ---

    def offered(self, agent: Agent, where: Circumstances) -> Sequence[ToolSpec]:
        return self._known(agent, where)[1]

    def chain(self, agent: Agent, where: Circumstances) -> Chain:
        return self._known(agent, where)[0]

    def _known(self, agent: Agent, where: Circumstances) -> _Known:
        settings = self._settings()
        if settings is not self._ruled_by or len(self._chains) >= CHAINS_REMEMBERED_MAX:
            self._forget()
            self._ruled_by = settings
        more = tuple(self._more(agent))  # from settings outside of [tools]
        latest = self._latest  # a turn looks up the same agent in the same circumstances several times
        if latest is not None and latest.asked_by is agent and latest.where == where and latest.more == more:
            return latest.known
        above = tuple(tuple(self._more(sender)) for sender in where.senders) if where.senders else ()
        # The sender is not part of the key: most senders have the same rules, and each subagent has its own address.
        ruled = tuple(by_sender(settings, where))
        key = (agent.name, agent.tools, where.apart_from_who_asks, ruled, more, above)
        known = self._chains.get(key)
        if known is None:
            specs = self.specs
            chains = [
                Chain([*layers_for(settings, sender, where), *theirs], specs)
                for sender, theirs in zip(where.senders, above, strict=True)
            ]
            chain = Chain([*layers_for(settings, agent, where), *more], specs, above=chains)
            known = self._chains[key] = (chain, [spec for spec in specs if not chain.decide(spec).denied])
        self._latest = _Latest(agent, where, more, known) if not where.senders else None
        return known

    async def judge(self, call: Call, occasion: Occasion) -> Judgement:
        """Return the full decision on one call.

        Policy is evaluated each time, so that an old approval does not outlive a new rule.
        """
        return await self._judge_by(call, occasion, await self._held(occasion))

    async def decide_directly(self, call: Call, occasion: Occasion) -> Direct:
        """Decide a call outside of a run, where no approval can be requested."""
        held = await self._held(occasion)
        judgement = await self._judge_by(call, occasion, held)
        return Direct(judgement.decision, self._scene(call, occasion, held))

    async def _judge_by(self, call: Call, occasion: Occasion, held: Sequence[Permission]) -> Judgement:
        tool = self._tools[call.tool]
        arguments, _ = _parsed(tool, call)
        await self._ready(call)
        return self._judge(tool, call, arguments, occasion, held, await self._read(occasion))[0]

    def _scene(self, call: Call, occasion: Occasion, granted: Sequence[Permission]) -> Scene:
        return occasion.scene(call, granted=granted, can_use=partial(self._can_use, occasion))

    def _can_use(self, occasion: Occasion, name: str) -> bool:
        tool = self._tools.get(name)
        return tool is not None and not self.chain(occasion.agent, occasion.where).decide(tool.spec).denied

    async def _ready(self, call: Call) -> None:
        if (walls := self._walled.get(call.tool)) is not None:
            await walls.ready()

    async def _held(self, occasion: Occasion) -> tuple[Permission, ...]:
        if self._grants is None:
            return ()
        return await self._grants.held(occasion.agent.name, occasion.session, occasion.where.origin)

    def _judge(
        self,
        tool: Tool,
        call: Call,
        arguments: Any | None,
        occasion: Occasion,
        held: Sequence[Permission],
        reading: Reading | None,
    ) -> tuple[Judgement, tuple[Permission, ...]]:
        """Return the decision, and the needed permissions that were not granted.

        A person who allows the call gives it these permissions. `arguments` is None if they are
        invalid: such a call needs nothing, because it will be refused.
        """
        chain = self.chain(occasion.agent, occasion.where)
        if arguments is None or chain.decide(tool.spec).denied:
            return judge(chain, tool.spec, held=held), ()
        scene = occasion.scene(call, granted=held)
        reaching, walls = self._reaching.get(call.tool), self._walled.get(call.tool)
        confirmed = self._confirmed.get(call.tool)
        lacks = missing(reaching.needs(arguments, scene), scene.rights, held) if reaching is not None else ()
        walled = occasion.scene(call, granted=(*held, *lacks)) if lacks else scene
        judgement = judge(
            chain,
            tool.spec,
            held=held,
            missing=lacks,
            origin=reading.decide(tool.spec, _as_read(call, arguments)) if reading is not None else None,
            sandbox=walls.sandbox(arguments, walled) if walls is not None else None,
            confirmation=confirmed.confirm(arguments, scene) if confirmed is not None else None,
        )
        return judgement, lacks

    async def _read(self, occasion: Occasion) -> Reading | None:
        """Return None while the whole context is trusted: then provenance cannot affect a call."""
        if self._origin is None or occasion.trust is not Trust.UNTRUSTED:
            return None
        context = list(occasion.context)
        if self._earlier is not None:
            context = [*await self._earlier(occasion.session, context), *context]
        today = self._clock.now().astimezone(self._zone).date() if self._clock is not None else None
        from retinue.tools.argument_provenance import Reading  # needed only for untrusted content

        return Reading(self._origin(), context, today=today, as_read=self._as_read)

    def _as_read(self, call: Call) -> Call:
        tool = self._tools.get(call.tool)
        arguments = _parsed(tool, call)[0] if tool is not None else None
        return _as_read(call, arguments) if arguments is not None else call

    async def decide(self, calls: Sequence[Call], ask: Ask, occasion: Occasion) -> Plan:
        allowed: list[Call] = []
        asked: list[Call] = []
        closed: list[ToolResult] = []
        because: list[str] = []
        gives: list[Permission] = []
        would_grant: list[tuple[Permission, ...]] = []
        scenes: dict[str, Scene] = {}
        reasons: dict[str, str] = {}
        rules = self._settings()
        held = await self._held(occasion) if calls else ()
        reading = await self._read(occasion) if calls else None
        for call in calls:
            tool = self._tools.get(call.tool)
            if tool is None:
                known = ", ".join(spec.name for spec in self.offered(occasion.agent, occasion.where)) or "none"
                why = f": {ABSENT[call.tool]}" if call.tool in ABSENT else ""
                closed.append(refusal(call, f"There is no tool '{call.tool}'{why}. Tools here: {known}."))
                continue
            arguments, unfit = _parsed(tool, call)
            await self._ready(call)
            judgement, lacks = self._judge(tool, call, arguments, occasion, held, reading)
            decision = judgement.decision
            if unfit and not decision.denied:
                closed.append(refusal(call, unfit))  # do not ask a person about a call that cannot be performed
                continue
            # An existing answer wins, even if the rules would no longer ask. A denial stays a denial, and a pending
            # approval resumes in a separate run.
            match decision.verdict, ask.answer_to(call):
                case Verdict.DENY, _:
                    closed.append(refusal(call, _not_allowed(decision)))
                case Verdict.ASK, None:
                    asked.append(call)
                    because.append(decision.because)
                    gives += lacks
                    would_grant.append(judgement.would_grant)
                case _, None:
                    allowed.append(call)
                    scenes[call.id] = self._scene(call, occasion, held)
                    reasons[call.id] = decision.because
                case _, ApprovalState.ALLOWED if beyond := missing(lacks, occasion.rights, ask.gives(call)):
                    # The same arguments may need more by now: a link changed, or a grant was revoked.
                    named = ", ".join(str(each) for each in beyond)
                    closed.append(refusal(call, f"Not done: it needs {named}, which nobody was asked for. Try again."))
                case _, ApprovalState.ALLOWED:
                    allowed.append(call)
                    scenes[call.id] = self._scene(call, occasion, (*held, *lacks))
                    # By id only: the approval's text quotes the arguments, and the audit log is permanent.
                    reasons[call.id] = f"approval {ask.name_of(call)} allows it"
                case _, ApprovalState.OPEN:
                    closed.append(refusal(call, f"Waiting for approval {ask.name_of(call)}. Go on without it for now."))
                case _, state:
                    closed.append(refusal(call, f"Not done: the approval {ask.name_of(call)} is {state}."))
        return Plan(
            allowed=tuple(allowed),
            asked=tuple(asked),
            closed=tuple(closed),
            because="; ".join(dict.fromkeys(because)),
            gives=tuple(dict.fromkeys(gives)),
            # If one call can only be allowed once, all calls of this approval can only be allowed once.
            would_grant=tuple(dict.fromkeys(each for some in would_grant for each in some)) if all(would_grant) else (),
            scenes=scenes,
            reasons=reasons,
            held=held,
            rules=rules,
        )

    async def holds(self, plan: Plan, occasion: Occasion) -> bool:
        """Return whether grants and settings are unchanged since the plan was made."""
        return self._settings() is plan.rules and await self._held(occasion) == plan.held

    # --- performing ---

    async def perform(self, call: Call, scene: Scene, *, kept: bool = True) -> ToolResult:
        """Perform one call. `is_recorded` means that a record stores the result, so it can be read
        in full later.
        """
        tool = self._tools[call.tool]
        if self._clock is not None and self._calls.per_minute:
            wait_s = math.ceil(self._calls.take(scene.agent.name, self._clock.now().timestamp()))
            if wait_s:
                most = self._calls.per_minute
                return refusal(
                    call, f"Not done: {scene.agent.name} may make {most} calls in a minute. Try again in {wait_s} s."
                )
        arguments, unfit = _parsed(tool, call)
        if unfit:
            return refusal(call, unfit)
        bound = asyncio.timeout(tool.spec.timeout_s)
        try:
            async with bound:
                output = await tool.perform(arguments, scene)
        except msgspec.ValidationError as error:
            return refusal(call, _does_not_fit(call, error))
        except Pending:
            if tool.spec.only_looks:  # a read-only tool has no step that could stay open
                return refusal(call, f"'{call.tool}' broke: it waits for something, and only looks.")
            raise
        except ToolFailed as error:  # a built-in tool's error text is our own
            return refusal(call, self._mask(str(error)), trust=_trust_of_failure(tool.spec, own=_is_ours(tool.spec)))
        except Exception as error:  # noqa: BLE001 - a broken tool is something the model reads about
            if bound.expired():
                return refusal(call, f"'{call.tool}' took longer than {tool.spec.timeout_s:g} s and was ended.")
            why = f"'{call.tool}' broke: {type(error).__name__}: {error}"
            return refusal(call, self._mask(why), trust=_trust_of_failure(tool.spec, own=False))
        if isinstance(output, str):
            output = Output(text=output)
        text = storable(self._mask(output.text))
        trust = output.trust or self._label(tool.spec, text)
        shown, whole = await self._wholes.shorten(text) if self._wholes is not None and kept else (clipped(text), "")
        if trust is Trust.UNTRUSTED and self._ids is not None and not is_wrapped(shown):
            said, cut, notice = shown.rpartition("\n[cut: ") if len(text) > RESULT_CHARS_MAX else (shown, "", "")
            shown = wrap(said, id=self._ids.new(), source={"tool": call.tool}) + cut + notice
        return ToolResult(
            call=call.id,
            tool=call.tool,
            output=shown,
            failed=output.failed,
            trust=trust,
            attachments=output.attachments,
            whole=whole,
        )

    def _label(self, spec: ToolSpec, text: str) -> Trust:
        if self._origin is None:
            return Trust.UNTRUSTED if Effect.READS_UNTRUSTED in spec.effects else Trust.PRIVATE
        return label(self._origin(), spec, text)


def _by_protocol(tools: Sequence[Tool], protocol: type[_P]) -> dict[str, _P]:
    """Return the tools that implement a protocol, by name. Checks once per class: most tools share
    one.
    """
    fitting = {kind for kind in {type(tool) for tool in tools} if issubclass(kind, protocol)}
    return {tool.spec.name: cast("_P", tool) for tool in tools if type(tool) in fitting}


def _parsed(tool: Tool, call: Call) -> tuple[Any | None, str]:
    """Return the arguments, or None and what is wrong with them."""
    try:
        return msgspec.convert(call.arguments, tool.arguments), ""
    except msgspec.ValidationError as error:
        return None, _does_not_fit(call, error)


def _does_not_fit(call: Call, error: msgspec.ValidationError) -> str:
    return f"These arguments do not fit '{call.tool}': {error}."


def _as_read(call: Call, arguments: Any) -> Call:
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


def _is_ours(spec: ToolSpec) -> bool:
    return ":" not in spec.source


def _trust_of_failure(spec: ToolSpec, *, own: bool) -> Trust:
    """An error text of an external tool is untrusted content."""
    return Trust.UNTRUSTED if Effect.READS_UNTRUSTED in spec.effects and not own else Trust.PRIVATE


def _not_allowed(decision: Decision) -> str:
    where = f" (settings: {decision.key})" if decision.key else ""
    return f"Not allowed: {decision.because}{where}."
