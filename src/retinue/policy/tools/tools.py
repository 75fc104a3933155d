"""Decides whether a tool may be used: layers of rules that can only restrict.

Deny wins, then ask.

global -> provider and model -> agent -> session -> sender, and how it is called. What a call needs
beyond that (permissions, provenance of its arguments, a sandbox) is decided by
`policy/tools/tool_decision`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from retinue.config.tools import ToolSettings
from retinue.domain.address import Address
from retinue.domain.agent import Agent, ToolLists
from retinue.domain.decision import Decision, Verdict
from retinue.domain.person import Requester
from retinue.domain.session import OriginKind
from retinue.domain.structs import replace
from retinue.domain.tool import ToolSpec
from retinue.policy.tools.tool_groups import (
    ABSENT,
    EVERYTHING,
    GROUPS,
    INVOKE_DENIED,
    OF_A_ROOM,
    OF_A_SCHEDULE,
    PROFILES,
    SUBAGENT_DENIED,
    expanded,
)
from retinue.text.glob_match import matches_glob

SYSTEM = "system_"
WRITING = ("write", "edit")
BROWSING = ("browser", "browser_act")
AGENTS = "agents_"
OUTSIDE_KEY = "tools.outside_senders"
ALLOWED = Decision(Verdict.ALLOW, "no rule is against it")


class Door(StrEnum):
    """How a call comes in."""

    MODEL = "model"
    INVOKE = "invoke"  # called directly, over HTTP or from the terminal
    MCP = "mcp"
    SKILL = "skill"


class Circumstances(NamedTuple):
    """The facts that the rules depend on, besides the agent.

    A tuple: rules are looked up by it several times per turn.
    """

    provider: str = ""
    model: str = ""
    origin: OriginKind = OriginKind.TERMINAL
    sender: Address | None = None
    speakers: tuple[Address, ...] = ()  # the people who wrote in the channel, if the sender is one
    behalf: Address | None = None  # the run principal, if another run started this one
    behalf_speakers: tuple[Address, ...] = ()  # the people who wrote in that channel, if the principal is one
    senders: tuple[Agent, ...] = ()  # the agents that spawned this one; their rules apply too
    requesters: tuple[Requester, ...] = ()  # the people for whom the run acts; empty if none asked for it
    channel: str = ""  # CONNECTOR:CHANNEL, if the message came from one
    door: Door = Door.MODEL
    hidden: tuple[str, ...] = ()  # tools that are offered as skills instead
    read_only: bool = False  # the workspace must not be written, by commands or otherwise
    browser: bool = True  # whether its sandbox permits one

    @property
    def apart_from_who_asks(self) -> tuple[object, ...]:
        """All fields but those that `build_sender_layers` reads.

        Together with its result, a cache key for the layers.
        """
        return (
            *(self.provider, self.model, self.origin, self.door),
            *(self.hidden, self.read_only, self.browser, self.senders),
        )


class Layer(Struct, frozen=True, kw_only=True):
    """One set of rules.

    `is_agents`: they are the agent's own, which `system_*` tools bypass.

    `is_fixed`: the lists are built in, and only `key` itself can be changed. `only_restricts`: they
    apply because of the run principal, not the sender. They can only remove tools, and naming a
    tool in them does not enable it.
    """

    name: str
    key: str
    lists: ToolLists
    own: bool = False
    fixed: bool = False
    lent: bool = False


class Finding(Struct, frozen=True):
    """The decision of one layer, and the setting behind it."""

    layer: str
    verdict: Verdict
    because: str
    key: str


class _Rules(Struct, frozen=True, kw_only=True):
    """A layer with its entries expanded to tool names."""

    layer: Layer
    profile: tuple[str, ...] | None
    allow: tuple[str, ...] | None  # None: everything, or a list of nothing but plugins, which hides no other tool
    also_allow: tuple[str, ...]
    ask: tuple[str, ...]
    deny: tuple[str, ...]


class Chain:
    """The rules for one agent in its context.

    Pure, and the same for every interface.

    `parents` are the chains of the agents that spawned it, in the same context. It may not do what
    one of them may not.
    """

    def __init__(self, layers: Sequence[Layer], known: Iterable[ToolSpec], *, above: Sequence[Chain] = ()) -> None:
        self.layers = tuple(layers)
        self._above = tuple(above)
        specs = {spec.name: spec for spec in known}
        sources = _by_source(specs.values())
        self.warnings: list[str] = []
        self._rules = [self._spelled_out(layer, specs, sources) for layer in self.layers]
        # `*` and a profile do not name a tool. A tool that must be named can be named where it is
        # allowed, in any layer.
        naming = (rules for rules in self._rules if not rules.layer.lent)
        self._named = [glob for rules in naming for glob in (*(rules.allow or ()), *rules.also_allow, *rules.ask)]
        # Safe to cache: rules do not change.
        self._judged: dict[str, tuple[ToolSpec, tuple[Finding, ...], Decision]] = {}
        # Interned: most tools get the same findings, and there are hundreds of tools.
        self._said: dict[Finding, Finding] = {}

    def decide(self, spec: ToolSpec) -> Decision:
        return self._judge(spec)[2]

    def findings(self, spec: ToolSpec) -> tuple[Finding, ...]:
        """Return the decision of every layer, to explain the result."""
        return self._judge(spec)[1]

    def _judge(self, spec: ToolSpec) -> tuple[ToolSpec, tuple[Finding, ...], Decision]:
        known = self._judged.get(spec.name)
        if known is None or known[0] is not spec:
            said = (finding for chain in self._above for finding in chain.findings(spec))
            findings = tuple(dict.fromkeys((*self._look(spec), *said)))  # most layers are the same for all
            findings = tuple(self._said.setdefault(each, each) for each in findings)
            known = self._judged[spec.name] = (spec, findings, _strictest(findings))
        return known

    def _look(self, spec: ToolSpec) -> Iterator[Finding]:
        if spec.by_name and not any(glob != EVERYTHING and matches_glob(glob, spec.name) for glob in self._named):
            because = f"'{spec.name}' is only for agents whose rules name it"
            yield Finding("by name", Verdict.DENY, because, _agent_key(self.layers, "also_allow"))
        for rules in self._rules:
            yield _say(rules, spec)

    def _spelled_out(
        self, layer: Layer, specs: Mapping[str, ToolSpec], sources: Mapping[str, tuple[str, ...]]
    ) -> _Rules:
        lists = layer.lists
        allow: tuple[str, ...] | None = expanded(lists.allow, sources)
        for field in ("allow", "also_allow", "ask", "deny"):
            for entry in getattr(lists, field):
                if not any(matches_glob(glob, name) for glob in expanded((entry,), sources) for name in specs):
                    if entry != EVERYTHING and not _is_known(entry):
                        why = f": {ABSENT[entry.casefold()]}" if entry.casefold() in ABSENT else ""
                        self.warnings.append(f"{layer.key}.{field} names '{entry}', and there is no such tool{why}")
        if allow and _only_plugins(allow, specs):
            self.warnings.append(f"{layer.key}.allow names only plug-ins: it adds to what else is allowed")
            allow = None
        return _Rules(
            layer=layer,
            profile=PROFILES.get(lists.profile, ()) if lists.profile is not None else None,
            allow=None if allow == (EVERYTHING,) else allow,
            also_allow=expanded(lists.also_allow, sources),
            ask=expanded(lists.ask, sources),
            deny=expanded(lists.deny, sources),
        )


def _strictest(findings: Sequence[Finding]) -> Decision:
    """Return the first denial; else the first ask."""
    for verdict in (Verdict.DENY, Verdict.ASK):
        for finding in findings:
            if finding.verdict is verdict:
                return Decision(verdict, finding.because, finding.key)
    return ALLOWED


def _say(rules: _Rules, spec: ToolSpec) -> Finding:
    """Apply one layer to one tool: deny first, then what is allowed, then capabilities, then ask."""
    layer, lists, name = rules.layer, rules.layer.lists, spec.name

    def found(verdict: Verdict, because: str, field: str) -> Finding:
        return Finding(layer.name, verdict, because, layer.key if layer.fixed else f"{layer.key}.{field}")

    if layer.own and name.startswith(SYSTEM):
        return found(Verdict.ALLOW, f"{SYSTEM}* tools pass an agent's own lists", "allow")
    if (glob := _first(rules.deny, name)) is not None:
        return found(Verdict.DENY, f"{layer.name} denies '{glob}'", "deny")
    asked = _first(rules.ask, name)  # a tool that needs approval must be available
    if asked is None and _first(rules.also_allow, name) is None:
        if rules.profile is not None and _first(rules.profile, name) is None:
            return found(Verdict.DENY, f"{layer.name} has the profile '{lists.profile}', without '{name}'", "profile")
        if rules.allow is not None and _first(rules.allow, name) is None:
            return found(Verdict.DENY, f"{layer.name} does not allow '{name}'", "allow")
    for capability in sorted(spec.capabilities):
        if _first(lists.capabilities_allow, capability) is None:
            because = f"{layer.name} does not allow the capability '{capability}'"
            return found(Verdict.DENY, because, "capabilities_allow")
        if (glob := _first(lists.capabilities_deny, capability)) is not None:
            return found(Verdict.DENY, f"{layer.name} denies the capability '{glob}'", "capabilities_deny")
    if asked is not None:
        return found(Verdict.ASK, f"{layer.name} asks before '{asked}'", "ask")
    return found(Verdict.ALLOW, f"{layer.name} has nothing against it", "allow")


def _first(globs: Sequence[str], text: str) -> str | None:
    return next((glob for glob in globs if matches_glob(glob, text)), None)


def _only_plugins(globs: Sequence[str], specs: Mapping[str, ToolSpec]) -> bool:
    """Whether these match only plugin tools: then they were written to add those, not to hide the rest."""
    fitting = [spec for name, spec in specs.items() if any(matches_glob(glob, name) for glob in globs)]
    return bool(fitting) and all(":" in spec.source for spec in fitting)


def _by_source(specs: Iterable[ToolSpec]) -> dict[str, tuple[str, ...]]:
    """Return the tools of each plugin or MCP server, under `plugin:NAME` and, if no group has that name, under NAME."""
    found: dict[str, list[str]] = {}
    for spec in specs:
        kind, colon, name = spec.source.casefold().partition(":")
        if colon:
            found.setdefault(f"{kind}:{name}", []).append(spec.name)
            if name not in GROUPS:
                found.setdefault(name, []).append(spec.name)
    return {name: tuple(tools) for name, tools in found.items()}


def _is_known(entry: str) -> bool:
    """Whether it names a tool that exists but may not be installed here, such as those of a browser."""
    name = entry.casefold()
    return name.startswith(("group:", SYSTEM)) or name in GROUPS or any(name in tools for tools in GROUPS.values())


def _agent_key(layers: Sequence[Layer], field: str) -> str:
    return next((f"{layer.key}.{field}" for layer in layers if layer.own), f"tools.{field}")


# --- the layers ---


def layers_for(settings: ToolSettings, agent: Agent, where: Circumstances) -> list[Layer]:
    """Return the layers in order: server, provider and model, agent, session, sender, call source."""
    own = agent.tools
    key = f"agents.{agent.name}.tools"
    # An agent's profile replaces the server's.
    house = settings if own.profile is None else _without_profile(settings)
    layers = [Layer(name="the house", key="tools", lists=house)]
    if not settings.agents_enabled:
        off = ToolLists(deny=(f"{AGENTS}*",))
        layers.append(Layer(name="the house (agents_enabled)", key="tools.agents_enabled", lists=off, fixed=True))
    layers += _by_provider(settings.by_provider, "tools", where, own=False)
    if own.policy is not None:
        named = settings.policies.get(own.policy)
        # An undeclared policy allows nothing: it was meant to restrict.
        lists = named if named is not None else ToolLists(allow=())
        because = own.policy if named is not None else f"{own.policy}, which is not declared"
        layers.append(Layer(name=f"the policy {because}", key=f"tools.policies.{own.policy}", lists=lists))
    layers.append(Layer(name=f"the agent {agent.name}", key=key, lists=own, own=True))
    layers += _by_provider(own.by_provider, key, where, own=True)
    if where.origin in (OriginKind.SUBAGENT, OriginKind.BACKGROUND):
        fixed = ToolLists(deny=SUBAGENT_DENIED)
        layers.append(Layer(name="the rule for subagents", key="tools.by_session.subagent", lists=fixed, fixed=True))
    if where.origin is not OriginKind.SCHEDULE:
        fixed = ToolLists(deny=OF_A_SCHEDULE)
        layers.append(Layer(name="the rule for schedules", key="tools.by_session.schedule", lists=fixed, fixed=True))
    if where.origin is not OriginKind.CHAT:
        fixed = ToolLists(deny=OF_A_ROOM)
        layers.append(Layer(name="the rule for rooms", key="tools.by_session.chat", lists=fixed, fixed=True))
    if (lists := settings.by_session.get(where.origin.value)) is not None:
        name = f"the rules for {where.origin} sessions"
        layers.append(Layer(name=name, key=f"tools.by_session.{where.origin}", lists=lists))
    layers += by_sender(settings, where)
    if where.hidden:
        layers.append(Layer(name="skills", key="skills.exposure", lists=ToolLists(deny=where.hidden)))
    if where.read_only:
        layers.append(Layer(name="the sandbox", key="sandbox.workspace", lists=ToolLists(deny=WRITING)))
    if not where.browser:
        layers.append(Layer(name="the sandbox", key="sandbox.browser", lists=ToolLists(deny=BROWSING)))
    if where.door is not Door.MODEL:
        denied = tuple(
            name for name in INVOKE_DENIED if not any(matches_glob(glob, name) for glob in settings.invoke_allow)
        )
        layers.append(
            Layer(name="the rule for direct calls", key="tools.invoke_allow", lists=ToolLists(deny=denied), fixed=True)
        )
    return layers


def _without_profile(settings: ToolSettings) -> ToolLists:
    return ToolLists(
        allow=settings.allow,
        also_allow=settings.also_allow,
        ask=settings.ask,
        deny=settings.deny,
        capabilities_allow=settings.capabilities_allow,
        capabilities_deny=settings.capabilities_deny,
    )


def _by_provider(rules: Mapping[str, ToolLists], key: str, where: Circumstances, *, own: bool) -> list[Layer]:
    """Return the rules for the model, or else those for its provider."""
    by_name = {name.casefold(): (name, lists) for name, lists in rules.items()}
    for wanted in (f"{where.provider}/{where.model}", where.provider):
        if where.provider and wanted.casefold() in by_name:
            name, lists = by_name[wanted.casefold()]
            return [Layer(name=f"the rules for {name}", key=f"{key}.by_provider.{name}", lists=lists, own=own)]
    return []


def by_sender(settings: ToolSettings, where: Circumstances) -> list[Layer]:
    """Return the layers for the senders.

    A run that acts for another principal is bound by the rules for both, so asking through an agent
    gains nothing.

    The same holds for several people in one channel: writing after another person gains nothing.
    Depends on `sender`, `speakers`, `principal`, `principal_speakers`, `requesters` and `channel`
    only.
    """
    is_outside = any(each.is_outside for each in where.requesters)
    if not settings.by_sender and not settings.by_channel and not is_outside:
        return []
    layers: dict[tuple[str, ToolLists], Layer] = {}
    left = {each.address: each for each in where.requesters}  # whose rules have not been looked up yet

    def add(found: Sequence[Layer], whose: Address | None, *, lent: bool) -> None:
        for layer in found:
            layers.setdefault((layer.key, layer.lists), replace(layer, lent=True) if lent else layer)
        requester = left.pop(whose, None) if whose is not None else None
        if requester is not None and requester.is_outside:
            layer = _for_outside(settings, found)
            layers.setdefault((layer.key, layer.lists), layer)

    for number, speaker in enumerate(where.speakers or (None,)):
        found = _for_sender(settings, (speaker, where.sender), where.channel)
        add(found, speaker or where.sender, lent=number > 0)
    behalf = where.behalf
    if behalf is not None and behalf != where.sender:
        for speaker in where.behalf_speakers or (None,):
            add(_for_sender(settings, (speaker, behalf), behalf.room), speaker or behalf, lent=True)
    for whose in tuple(left):  # who set the schedule, or wrote last if the server itself is the sender
        add(_for_sender(settings, (whose,), whose.room), whose, lent=True)
    return list(layers.values())


def _for_outside(settings: ToolSettings, found: Sequence[Layer]) -> Layer:
    """Return the layer for a person who is neither the owner nor a member.

    Rules written for them come first: their profile replaces this one, and tools they add are added
    here too.
    """
    lists = settings.outside_senders
    rules = [layer.lists for layer in found]
    has_profile = any(each.profile is not None for each in rules)
    added = [name for each in rules for name in (*each.also_allow, *each.ask)]
    return Layer(
        name="the rule for outside senders",
        key=OUTSIDE_KEY,
        lists=ToolLists(
            profile=None if has_profile else lists.profile,
            allow=lists.allow,
            also_allow=(*lists.also_allow, *added),
            ask=lists.ask,
            deny=lists.deny,
            capabilities_allow=lists.capabilities_allow,
            capabilities_deny=lists.capabilities_deny,
        ),
        lent=True,
    )


def _for_sender(settings: ToolSettings, addresses: Sequence[Address | None], room: str) -> list[Layer]:
    layers: list[Layer] = []
    senders = [str(each) for each in addresses if each is not None]
    for name, lists in settings.by_sender.items():
        if any(matches_glob(name, sender) for sender in senders):
            layers.append(Layer(name=f"the rules for {name}", key=f"tools.by_sender.{name}", lists=lists))
    if room:
        # Only the most specific rules apply: this sender here, this channel, the sender anywhere, any channel.
        for channel in (room, EVERYTHING):
            rules = settings.by_channel.get(channel)
            if rules is None:
                continue
            key = f"tools.by_channel.{channel}"
            for name, lists in rules.by_sender.items():
                if any(matches_glob(name, sender) for sender in senders):
                    told = f"the rules for {name} in {channel}"
                    return [*layers, Layer(name=told, key=f"{key}.by_sender.{name}", lists=lists)]
            return [*layers, Layer(name=f"the rules for {channel}", key=key, lists=rules)]
    return layers
