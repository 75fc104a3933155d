"""Decides whether a tool may be used, by layers of rules. Each layer can only restrict further.

A tool is denied if any layer denies it. Otherwise it needs approval if any layer requires approval.

The layers are: server, provider and model, agent, session, sender, and the way in which the tool is
called. `policy/tools/tool_decision` adds the checks of a single call: permissions, the provenance of
its arguments, and the sandbox.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from retinue.config.tools import ToolSettings
from retinue.domain.address import Address
from retinue.domain.agent import Agent, ToolLists
from retinue.domain.decision import Decision, DecisionKind
from retinue.domain.person import Requester
from retinue.domain.session import OriginKind
from retinue.domain.structs import replace
from retinue.domain.tool import ToolSpec
from retinue.policy.tools.tool_groups import (
    CHANNEL_TOOLS,
    EVERYTHING,
    GROUPS,
    INVOKE_DENIED,
    PROFILES,
    SCHEDULE_TOOLS,
    SUBAGENT_DENIED,
    UNAVAILABLE_TOOLS,
    expand_entries,
)
from retinue.text.glob_match import matches_glob

SYSTEM_PREFIX = "system_"
WRITE_TOOLS = ("write", "edit")
BROWSER_TOOLS = ("browser", "browser_act")
AGENTS_PREFIX = "agents_"
OUTSIDE_SENDERS_KEY = "tools.outside_senders"
ALLOWED = Decision(DecisionKind.ALLOW, "no rule denies it")


class CallSource(StrEnum):
    """The way in which a tool is called."""

    MODEL = "model"
    INVOKE = "invoke"  # called directly, over HTTP or from the terminal
    MCP = "mcp"
    SKILL = "skill"


class ToolPolicyContext(NamedTuple):
    """The facts, besides the agent, on which the rules about tools depend.

    It is a tuple because it is a cache key that is used several times per turn.
    """

    provider: str = ""
    model: str = ""
    origin: OriginKind = OriginKind.TERMINAL
    sender: Address | None = None
    speakers: tuple[Address, ...] = ()  # the people who wrote in the channel, if the sender is a channel
    principal: Address | None = None  # the run principal, if another run started this one
    principal_speakers: tuple[Address, ...] = ()  # the people who wrote in it, if the principal is a channel
    parent_agents: tuple[Agent, ...] = ()  # the agents that spawned this one; their rules apply too
    requesters: tuple[Requester, ...] = ()  # the people for whom the run acts; empty if no person is behind it
    channel: str = ""  # CONNECTOR:CHANNEL, if the message came from one
    call_source: CallSource = CallSource.MODEL
    hidden_tools: tuple[str, ...] = ()  # tools that are offered as skills instead
    is_read_only: bool = False  # the workspace must not be written, by commands or otherwise
    has_browser: bool = True  # whether the sandbox permits a browser

    @property
    def key_without_sender(self) -> tuple[object, ...]:
        """All fields except those that `build_sender_layers` reads.

        Together with the result of that function, this is a cache key for the layers.
        """
        return (
            *(self.provider, self.model, self.origin, self.call_source),
            *(self.hidden_tools, self.is_read_only, self.has_browser, self.parent_agents),
        )


class PolicyLayer(Struct, frozen=True, kw_only=True):
    """One set of rules about tools.

    `is_agents` means that the rules are those of the agent, which do not apply to `system_*` tools.

    `is_fixed` means that the lists are built in, so an explanation names only `key`, not a list in
    it. `only_restricts` means that the rules apply because of a person other than the sender. Such
    rules can only remove tools. They cannot enable a tool that is available only if a rule names it.
    """

    name: str
    key: str
    lists: ToolLists
    is_agents: bool = False
    is_fixed: bool = False
    only_restricts: bool = False


class LayerFinding(Struct, frozen=True):
    """The decision of one layer, and the setting that decided."""

    layer: str
    verdict: DecisionKind
    because: str
    key: str


class _ExpandedLayer(Struct, frozen=True, kw_only=True):
    """A layer with its entries expanded to tool names."""

    layer: PolicyLayer
    profile: tuple[str, ...] | None
    allow: tuple[str, ...] | None  # None: everything, or a list of plugin tools only, which hides no other tools
    also_allow: tuple[str, ...]
    ask: tuple[str, ...]
    deny: tuple[str, ...]


class ToolPolicyChain:
    """Decides which tools an agent may use. All layers of rules that apply to the agent are evaluated.

    All interfaces use this class.

    `parents` are the chains of the agents that started this agent as a subagent, in the same context. The agent may not
    use a tool that one of them may not use.
    """

    def __init__(
        self, layers: Sequence[PolicyLayer], tools: Iterable[ToolSpec], *, parents: Sequence[ToolPolicyChain] = ()
    ) -> None:
        self.layers = tuple(layers)
        self._parents = tuple(parents)
        specs = {spec.name: spec for spec in tools}
        sources = _group_by_source(specs.values())
        self.warnings: list[str] = []
        self._rules = [self._expand_layer(layer, specs, sources) for layer in self.layers]
        # `*` and a profile do not name a tool. A tool that must be named can be named where it is
        # allowed, in any layer.
        naming = (rules for rules in self._rules if not rules.layer.only_restricts)
        self._named_globs = [glob for rules in naming for glob in (*(rules.allow or ()), *rules.also_allow, *rules.ask)]
        # Decisions can be cached, because the rules of a chain do not change.
        self._decisions: dict[str, tuple[ToolSpec, tuple[LayerFinding, ...], Decision]] = {}
        # Interned: most tools get the same findings, and there are hundreds of tools.
        self._interned_findings: dict[LayerFinding, LayerFinding] = {}

    def decide(self, spec: ToolSpec) -> Decision:
        return self._evaluate(spec)[2]

    def findings(self, spec: ToolSpec) -> tuple[LayerFinding, ...]:
        """Return the decision of every layer, to explain the decision on a tool."""
        return self._evaluate(spec)[1]

    def _evaluate(self, spec: ToolSpec) -> tuple[ToolSpec, tuple[LayerFinding, ...], Decision]:
        known = self._decisions.get(spec.name)
        if known is None or known[0] is not spec:
            inherited = (finding for chain in self._parents for finding in chain.findings(spec))
            findings = tuple(
                dict.fromkeys((*self._collect_findings(spec), *inherited))
            )  # most layers are the same for all chains
            findings = tuple(self._interned_findings.setdefault(each, each) for each in findings)
            known = self._decisions[spec.name] = (spec, findings, _pick_strictest(findings))
        return known

    def _collect_findings(self, spec: ToolSpec) -> Iterator[LayerFinding]:
        if spec.must_be_named and not any(
            glob != EVERYTHING and matches_glob(glob, spec.name) for glob in self._named_globs
        ):
            because = f"'{spec.name}' is only available to agents whose rules name it"
            yield LayerFinding("by name", DecisionKind.DENY, because, _agent_setting_key(self.layers, "also_allow"))
        for rules in self._rules:
            yield _apply_layer(rules, spec)

    def _expand_layer(
        self, layer: PolicyLayer, specs: Mapping[str, ToolSpec], sources: Mapping[str, tuple[str, ...]]
    ) -> _ExpandedLayer:
        lists = layer.lists
        allow: tuple[str, ...] | None = expand_entries(lists.allow, sources)
        for field in ("allow", "also_allow", "ask", "deny"):
            for entry in getattr(lists, field):
                if not any(matches_glob(glob, name) for glob in expand_entries((entry,), sources) for name in specs):
                    if entry != EVERYTHING and not _is_known_name(entry):
                        why = (
                            f": {UNAVAILABLE_TOOLS[entry.casefold()]}" if entry.casefold() in UNAVAILABLE_TOOLS else ""
                        )
                        self.warnings.append(f"{layer.key}.{field} names '{entry}', which is not a known tool{why}")
        if allow and _match_only_plugins(allow, specs):
            self.warnings.append(f"{layer.key}.allow names only plugins, so it adds to the other allowed tools")
            allow = None
        return _ExpandedLayer(
            layer=layer,
            profile=PROFILES.get(lists.profile, ()) if lists.profile is not None else None,
            allow=None if allow == (EVERYTHING,) else allow,
            also_allow=expand_entries(lists.also_allow, sources),
            ask=expand_entries(lists.ask, sources),
            deny=expand_entries(lists.deny, sources),
        )


def _pick_strictest(findings: Sequence[LayerFinding]) -> Decision:
    """Return the strictest decision of the layers: the first denial, else the first ask, else allow."""
    for verdict in (DecisionKind.DENY, DecisionKind.ASK):
        for finding in findings:
            if finding.verdict is verdict:
                return Decision(verdict, finding.because, finding.key)
    return ALLOWED


def _apply_layer(rules: _ExpandedLayer, spec: ToolSpec) -> LayerFinding:
    """Apply one layer to one tool: first `deny`, then `allow`, then capabilities, then `ask`."""
    layer, lists, name = rules.layer, rules.layer.lists, spec.name

    def found(verdict: DecisionKind, because: str, field: str) -> LayerFinding:
        return LayerFinding(layer.name, verdict, because, layer.key if layer.is_fixed else f"{layer.key}.{field}")

    if layer.is_agents and name.startswith(SYSTEM_PREFIX):
        return found(DecisionKind.ALLOW, f"{SYSTEM_PREFIX}* tools ignore an agent's own lists", "allow")
    if (glob := _find_glob(rules.deny, name)) is not None:
        return found(DecisionKind.DENY, f"{layer.name} denies '{glob}'", "deny")
    asked = _find_glob(rules.ask, name)  # a tool that `ask` lists is also allowed
    if asked is None and _find_glob(rules.also_allow, name) is None:
        if rules.profile is not None and _find_glob(rules.profile, name) is None:
            return found(
                DecisionKind.DENY,
                f"{layer.name} has the profile '{lists.profile}', which does not include '{name}'",
                "profile",
            )
        if rules.allow is not None and _find_glob(rules.allow, name) is None:
            return found(DecisionKind.DENY, f"{layer.name} does not allow '{name}'", "allow")
    for capability in sorted(spec.capabilities):
        if _find_glob(lists.capabilities_allow, capability) is None:
            because = f"{layer.name} does not allow the capability '{capability}'"
            return found(DecisionKind.DENY, because, "capabilities_allow")
        if (glob := _find_glob(lists.capabilities_deny, capability)) is not None:
            return found(DecisionKind.DENY, f"{layer.name} denies the capability '{glob}'", "capabilities_deny")
    if asked is not None:
        return found(DecisionKind.ASK, f"{layer.name} requires approval for '{asked}'", "ask")
    return found(DecisionKind.ALLOW, f"{layer.name} does not restrict it", "allow")


def _find_glob(globs: Sequence[str], text: str) -> str | None:
    return next((glob for glob in globs if matches_glob(glob, text)), None)


def _match_only_plugins(globs: Sequence[str], specs: Mapping[str, ToolSpec]) -> bool:
    """Whether these globs match only plugin tools. Such a list is meant to add these tools, not to hide all others."""
    fitting = [spec for name, spec in specs.items() if any(matches_glob(glob, name) for glob in globs)]
    return bool(fitting) and all(":" in spec.source for spec in fitting)


def _group_by_source(specs: Iterable[ToolSpec]) -> dict[str, tuple[str, ...]]:
    """Return the tools of each plugin or MCP server, under `plugin:NAME` or `mcp:NAME`.

    They are also under NAME, unless a group has that name.
    """
    found: dict[str, list[str]] = {}
    for spec in specs:
        kind, colon, name = spec.source.casefold().partition(":")
        if colon:
            found.setdefault(f"{kind}:{name}", []).append(spec.name)
            if name not in GROUPS:
                found.setdefault(name, []).append(spec.name)
    return {name: tuple(tools) for name, tools in found.items()}


def _is_known_name(entry: str) -> bool:
    """Whether an entry names a tool that Retinue knows, even if it is not installed, such as a browser tool."""
    name = entry.casefold()
    return (
        name.startswith(("group:", SYSTEM_PREFIX)) or name in GROUPS or any(name in tools for tools in GROUPS.values())
    )


def _agent_setting_key(layers: Sequence[PolicyLayer], field: str) -> str:
    return next((f"{layer.key}.{field}" for layer in layers if layer.is_agents), f"tools.{field}")


# --- the layers ---


def build_layers(settings: ToolSettings, agent: Agent, context: ToolPolicyContext) -> list[PolicyLayer]:
    """Return the layers of rules in order: server, provider and model, agent, session, sender, call source."""
    own = agent.tools
    key = f"agents.{agent.name}.tools"
    # An agent's profile replaces the server's.
    shared = settings if own.profile is None else _without_profile(settings)
    layers = [PolicyLayer(name="the server", key="tools", lists=shared)]
    if not settings.agents_enabled:
        off = ToolLists(deny=(f"{AGENTS_PREFIX}*",))
        layers.append(
            PolicyLayer(name="the server (agents_enabled)", key="tools.agents_enabled", lists=off, is_fixed=True)
        )
    layers += _build_provider_layers(settings.by_provider, "tools", context, own=False)
    if own.policy is not None:
        named = settings.policies.get(own.policy)
        # A policy that is not declared allows nothing, because the agent was meant to be restricted.
        lists = named if named is not None else ToolLists(allow=())
        because = own.policy if named is not None else f"{own.policy} (not declared)"
        layers.append(PolicyLayer(name=f"the policy {because}", key=f"tools.policies.{own.policy}", lists=lists))
    layers.append(PolicyLayer(name=f"the agent {agent.name}", key=key, lists=own, is_agents=True))
    layers += _build_provider_layers(own.by_provider, key, context, own=True)
    if context.origin in (OriginKind.SUBAGENT, OriginKind.BACKGROUND):
        fixed = ToolLists(deny=SUBAGENT_DENIED)
        layers.append(
            PolicyLayer(name="the rule for subagents", key="tools.by_session.subagent", lists=fixed, is_fixed=True)
        )
    if context.origin is not OriginKind.SCHEDULE:
        fixed = ToolLists(deny=SCHEDULE_TOOLS)
        layers.append(
            PolicyLayer(name="the rule for schedules", key="tools.by_session.schedule", lists=fixed, is_fixed=True)
        )
    if context.origin is not OriginKind.CHAT:
        fixed = ToolLists(deny=CHANNEL_TOOLS)
        layers.append(PolicyLayer(name="the rule for chats", key="tools.by_session.chat", lists=fixed, is_fixed=True))
    if (lists := settings.by_session.get(context.origin.value)) is not None:
        name = f"the rules for {context.origin} sessions"
        layers.append(PolicyLayer(name=name, key=f"tools.by_session.{context.origin}", lists=lists))
    layers += build_sender_layers(settings, context)
    if context.hidden_tools:
        layers.append(PolicyLayer(name="skills", key="skills.exposure", lists=ToolLists(deny=context.hidden_tools)))
    if context.is_read_only:
        layers.append(PolicyLayer(name="the sandbox", key="sandbox.workspace", lists=ToolLists(deny=WRITE_TOOLS)))
    if not context.has_browser:
        layers.append(PolicyLayer(name="the sandbox", key="sandbox.browser", lists=ToolLists(deny=BROWSER_TOOLS)))
    if context.call_source is not CallSource.MODEL:
        denied = tuple(
            name for name in INVOKE_DENIED if not any(matches_glob(glob, name) for glob in settings.invoke_allow)
        )
        layers.append(
            PolicyLayer(
                name="the rule for direct calls", key="tools.invoke_allow", lists=ToolLists(deny=denied), is_fixed=True
            )
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


def _build_provider_layers(
    rules: Mapping[str, ToolLists], key: str, context: ToolPolicyContext, *, own: bool
) -> list[PolicyLayer]:
    """Return the layer for the model, or else the layer for its provider. Empty if there are no rules for either."""
    by_name = {name.casefold(): (name, lists) for name, lists in rules.items()}
    for wanted in (f"{context.provider}/{context.model}", context.provider):
        if context.provider and wanted.casefold() in by_name:
            name, lists = by_name[wanted.casefold()]
            return [
                PolicyLayer(name=f"the rules for {name}", key=f"{key}.by_provider.{name}", lists=lists, is_agents=own)
            ]
    return []


def build_sender_layers(settings: ToolSettings, context: ToolPolicyContext) -> list[PolicyLayer]:
    """Return the layers of rules for the senders of a message.

    If a run acts on behalf of a principal other than its sender, the rules for both apply. A person
    therefore gains nothing by asking through an agent.

    If several people wrote in a channel, the rules for all of them apply. A person therefore gains
    nothing by writing after another person.

    The result depends only on these fields of `context`: `sender`, `speakers`, `principal`,
    `principal_speakers`, `requesters` and `channel`.
    """
    is_outside = any(each.is_outside for each in context.requesters)
    if not settings.by_sender and not settings.by_channel and not is_outside:
        return []
    layers: dict[tuple[str, ToolLists], PolicyLayer] = {}
    left = {each.address: each for each in context.requesters}  # whose rules have not been looked up yet

    def add(found: Sequence[PolicyLayer], whose: Address | None, *, lent: bool) -> None:
        for layer in found:
            layers.setdefault((layer.key, layer.lists), replace(layer, only_restricts=True) if lent else layer)
        requester = left.pop(whose, None) if whose is not None else None
        if requester is not None and requester.is_outside:
            layer = _build_outside_layer(settings, found)
            layers.setdefault((layer.key, layer.lists), layer)

    for number, speaker in enumerate(context.speakers or (None,)):
        found = _build_sender_layers(settings, (speaker, context.sender), context.channel)
        add(found, speaker or context.sender, lent=number > 0)
    behalf = context.principal
    if behalf is not None and behalf != context.sender:
        for speaker in context.principal_speakers or (None,):
            add(_build_sender_layers(settings, (speaker, behalf), behalf.channel), speaker or behalf, lent=True)
    for whose in tuple(left):  # who set the schedule, or wrote last if the server itself is the sender
        add(_build_sender_layers(settings, (whose,), whose.channel), whose, lent=True)
    return list(layers.values())


def _build_outside_layer(settings: ToolSettings, found: Sequence[PolicyLayer]) -> PolicyLayer:
    """Return the layer for a person who is neither the owner nor a member.

    `found` are the layers with the rules for this person. A profile in these rules replaces the
    profile of the new layer. Tools that these rules add are added to the new layer too.
    """
    lists = settings.outside_senders
    rules = [layer.lists for layer in found]
    has_profile = any(each.profile is not None for each in rules)
    added = [name for each in rules for name in (*each.also_allow, *each.ask)]
    return PolicyLayer(
        name="the rule for outside senders",
        key=OUTSIDE_SENDERS_KEY,
        lists=ToolLists(
            profile=None if has_profile else lists.profile,
            allow=lists.allow,
            also_allow=(*lists.also_allow, *added),
            ask=lists.ask,
            deny=lists.deny,
            capabilities_allow=lists.capabilities_allow,
            capabilities_deny=lists.capabilities_deny,
        ),
        only_restricts=True,
    )


def _build_sender_layers(
    settings: ToolSettings, addresses: Sequence[Address | None], sender_channel: str
) -> list[PolicyLayer]:
    layers: list[PolicyLayer] = []
    senders = [str(each) for each in addresses if each is not None]
    for name, lists in settings.by_sender.items():
        if any(matches_glob(name, sender) for sender in senders):
            layers.append(PolicyLayer(name=f"the rules for {name}", key=f"tools.by_sender.{name}", lists=lists))
    if sender_channel:
        # Only the most specific rules apply: this sender here, this channel, the sender anywhere, any channel.
        for channel in (sender_channel, EVERYTHING):
            rules = settings.by_channel.get(channel)
            if rules is None:
                continue
            key = f"tools.by_channel.{channel}"
            for name, lists in rules.by_sender.items():
                if any(matches_glob(name, sender) for sender in senders):
                    layer_name = f"the rules for {name} in {channel}"
                    return [*layers, PolicyLayer(name=layer_name, key=f"{key}.by_sender.{name}", lists=lists)]
            return [*layers, PolicyLayer(name=f"the rules for {channel}", key=key, lists=rules)]
    return layers
