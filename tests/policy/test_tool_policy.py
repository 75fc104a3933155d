"""Test which tools an agent has. Each policy layer can only remove tools."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.config.tools import ChannelToolSettings, ToolListSettings, ToolSettings
from retinue.domain import address
from retinue.domain.address import Address
from retinue.domain.agent import Agent, ToolLists, ToolRules
from retinue.domain.decision import DecisionKind
from retinue.domain.session import OriginKind
from retinue.domain.tool import ToolSpec
from retinue.policy.tools.tool_groups import GROUPS, INVOKE_DENIED, PROFILES, SUBAGENT_DENIED, expand_entries
from retinue.policy.tools.tool_policy import CallSource, PolicyLayer, ToolPolicyChain, ToolPolicyContext, build_layers
from retinue.text.glob_match import matches_glob

NAMES = (
    *(
        "read",
        "write",
        "edit",
        "ls",
        "find",
        "exec",
        "process",
        "web_search",
        "web_fetch",
        "browser",
        "browser_act",
        "message",
    ),
    *("session_status", "gateway", "agents_list", "agents_message", "cron", "memory_search", "memory_get"),
    *("sessions_list", "sessions_history", "sessions_send", "sessions_spawn", "system_time"),
)


def spec(name: str, *capabilities: str, source: str = "built_in", by_name: bool = False) -> ToolSpec:
    return ToolSpec(
        name=name,
        description="",
        parameters={},
        capabilities=frozenset(capabilities),
        source=source,
        must_be_named=by_name,
    )


CORE = tuple(spec(name) for name in NAMES)
PLUGIN = (spec("weather_now", source="plugin:weather"), spec("weather_soon", source="plugin:weather"))


def chain(
    settings: ToolSettings | None = None,
    rules: ToolRules | None = None,
    *,
    known: tuple[ToolSpec, ...] = (*CORE, *PLUGIN),
    **where: Any,
) -> ToolPolicyChain:
    agent = Agent(name="ada", tools=rules or ToolRules())
    return ToolPolicyChain(build_layers(settings or ToolSettings(), agent, ToolPolicyContext(**where)), known)


def list_allowed_names(chain: ToolPolicyChain, *specs: ToolSpec) -> set[str]:
    return {each.name for each in (specs or (*CORE, *PLUGIN)) if not chain.decide(each).is_denied}


# --- lists ---


@pytest.mark.spec("A84", "A38")
def test_an_agent_without_tool_lists_has_all_tools_and_an_empty_list_gives_none() -> None:
    assert list_allowed_names(chain()) == {*NAMES, "weather_now", "weather_soon"}
    assert list_allowed_names(chain(rules=ToolRules(allow=()))) == {"system_time"}
    assert list_allowed_names(chain(ToolSettings(allow=()))) == set()


@pytest.mark.spec("A84")
def test_system_tools_ignore_agent_lists_but_obey_the_deny_list_of_the_server() -> None:
    for rules in (
        ToolRules(allow=("read",)),
        ToolRules(deny=("*",)),
        ToolRules(capabilities_allow=()),
        ToolRules(capabilities_deny=("*",)),
    ):
        assert chain(rules=rules).decide(spec("system_time", "time.read")).is_allowed
    assert chain(ToolSettings(deny=("system_*",))).decide(spec("system_time")).is_denied
    assert chain(rules=ToolRules(deny=("*",))).decide(spec("read")).is_denied


@pytest.mark.spec("A84", "A37")
def test_a_tool_deny_list_overrides_the_allow_list_and_capabilities_are_checked_too() -> None:
    rules = ToolRules(allow=("read", "web_*"), deny=("web_fetch",))
    assert list_allowed_names(chain(rules=rules)) == {"read", "web_search", "system_time"}
    both = spec("notes", "notes.read", "notes.write")
    assert chain(rules=ToolRules(capabilities_allow=("notes.*",))).decide(both).is_allowed
    assert (
        chain(rules=ToolRules(capabilities_allow=("notes.read",))).decide(both).is_denied
    )  # every capability must be allowed
    assert chain(rules=ToolRules(capabilities_deny=("notes.write",))).decide(both).is_denied  # one is enough
    assert chain(rules=ToolRules(capabilities_allow=())).decide(both).is_denied
    assert chain(rules=ToolRules(capabilities_allow=())).decide(spec("bare")).is_allowed  # it has no capabilities


@pytest.mark.spec("A84")
def test_agent_tools_obey_tool_lists_and_agents_enabled() -> None:
    assert chain(rules=ToolRules(deny=("agents_message",))).decide(spec("agents_message")).is_denied
    off = chain(ToolSettings(agents_enabled=False))
    assert {"agents_list", "agents_message"}.isdisjoint(list_allowed_names(off))
    assert off.decide(spec("agents_list")).setting_key == "tools.agents_enabled"


def test_an_ask_entry_offers_a_tool_even_if_the_same_layer_does_not_allow_it() -> None:
    assert chain(rules=ToolRules(allow=(), ask=("read",))).decide(spec("read")).kind is DecisionKind.ASK
    assert chain(rules=ToolRules(profile="minimal", ask=("read",))).decide(spec("read")).kind is DecisionKind.ASK
    assert chain(ToolSettings(allow=()), ToolRules(ask=("read",))).decide(spec("read")).is_denied  # another layer
    assert chain(rules=ToolRules(deny=("read",), ask=("read",))).decide(spec("read")).is_denied


def test_tool_globs_ignore_case_and_only_the_star_is_special() -> None:
    assert matches_glob("WEB_*", "web_fetch") and matches_glob("*", "") and matches_glob("a*b*c", "a--b--c")
    assert (
        not matches_glob("web.", "web_")
        and not matches_glob("[rw]*", "read")
        and not matches_glob("re?d", "read")
        and not matches_glob("", "read")
    )
    assert chain(rules=ToolRules(deny=("Bash",))).decide(spec("exec")).is_denied  # an old name of the tool


@given(st.lists(st.sampled_from(["a", "b", "*", ".", "["]), max_size=12), st.text("ab.[", max_size=12))
def test_glob_matching_agrees_with_a_backtracking_matcher(pattern: list[str], text: str) -> None:
    def matches_by_backtracking(glob: str, rest: str) -> bool:
        if not glob:
            return not rest
        if glob[0] == "*":
            return any(matches_by_backtracking(glob[1:], rest[i:]) for i in range(len(rest) + 1))
        return bool(rest) and rest[0] == glob[0] and matches_by_backtracking(glob[1:], rest[1:])

    assert matches_glob("".join(pattern), text) == matches_by_backtracking("".join(pattern), text)


# --- groups and profiles ---


@pytest.mark.spec("C120")
def test_tool_groups_expand_by_either_name_and_by_a_glob() -> None:
    files = {"read", "write", "edit", "ls", "find"}
    commands = {"exec", "process"}
    web = {"web_search", "web_fetch", "browser", "browser_act"}
    sessions = {"sessions_list", "sessions_history", "sessions_send", "sessions_spawn"}
    admin = {"gateway", "agents_list", "cron"}
    expected = {"file": files, "fs": files, "exec": commands, "runtime": commands, "web": web, "sessions": sessions}
    for name, tools in (expected | {"admin": admin}).items():
        assert set(expand_entries((f"group:{name}",), {})) == tools
        assert list_allowed_names(chain(ToolSettings(allow=(f"group:{name}",)))) == tools
    for name in ("file", "fs", "runtime", "web", "sessions", "admin"):
        assert set(expand_entries((name,), {})) == set(GROUPS[name])
    assert expand_entries(("exec",), {}) == ("exec",)  # alone, it is the tool
    assert {*files, *commands, *web, *sessions, *admin} <= set(expand_entries(("group:*",), {}))


@pytest.mark.spec("C120")
@pytest.mark.parametrize(
    ("settings", "rules", "where"),
    [
        (ToolSettings(deny=("exec",)), ToolRules(), {}),
        (ToolSettings(by_provider={"openai": ToolListSettings(deny=("exec",))}), ToolRules(), {}),
        (ToolSettings(by_provider={"OpenAI/gpt-5": ToolListSettings(deny=("exec",))}), ToolRules(), {}),
        (ToolSettings(), ToolRules(deny=("exec",)), {}),
        (ToolSettings(), ToolRules(by_provider={"openai": ToolLists(deny=("exec",))}), {}),
        (
            ToolSettings(by_session={"subagent": ToolListSettings(deny=("exec",))}),
            ToolRules(),
            {"origin": OriginKind.SUBAGENT},
        ),
        (ToolSettings(policies={"careful": ToolListSettings(deny=("exec",))}), ToolRules(policy="careful"), {}),
        (ToolSettings(by_sender={"person:*": ToolListSettings(deny=("exec",))}), ToolRules(), {}),
        (ToolSettings(by_channel={"*": ChannelToolSettings(deny=("exec",))}), ToolRules(), {"channel": "irc:#home"}),
    ],
)
def test_tool_rules_from_every_setting_are_applied(
    settings: ToolSettings, rules: ToolRules, where: dict[str, Any]
) -> None:
    here: dict[str, Any] = {
        "provider": "openai",
        "model": "gpt-5",
        "sender": address.parse_address("person:maria"),
    } | where
    assert chain(settings, rules, **here).decide(spec("exec")).is_denied
    assert not chain(settings, rules, **here).decide(spec("read")).is_denied
    elsewhere: dict[str, Any] = {"provider": "google", "sender": address.parse_address("agent:bo")}
    if settings.by_provider or settings.by_sender or rules.by_provider:
        assert chain(settings, rules, **elsewhere).decide(spec("exec")).is_allowed


@pytest.mark.spec("C55")
def test_tool_rules_for_a_model_replace_those_for_its_provider() -> None:
    rules = ToolSettings(
        by_provider={"openai": ToolListSettings(deny=("exec",)), "openai/gpt-5": ToolListSettings(deny=("read",))}
    )
    small = chain(rules, provider="openai", model="gpt-5-mini")
    large = chain(rules, provider="openai", model="gpt-5")
    assert small.decide(spec("exec")).is_denied and small.decide(spec("read")).is_allowed
    assert large.decide(spec("exec")).is_allowed and large.decide(spec("read")).is_denied


@pytest.mark.spec("C55", "C113.tools")
def test_also_allow_extends_a_tool_profile_and_an_agent_profile_replaces_the_server_profile() -> None:
    assert list_allowed_names(chain(ToolSettings(profile="minimal"))) == {"session_status"}
    more = ToolSettings(profile="minimal", also_allow=("web_fetch",))
    assert list_allowed_names(chain(more)) == {"session_status", "web_fetch"}
    own = chain(more, ToolRules(profile="messaging"))
    assert list_allowed_names(own) == {
        "message",
        "sessions_list",
        "sessions_history",
        "sessions_send",
        "session_status",
    } | {"system_time"}
    assert list_allowed_names(chain(ToolSettings(profile="full"))) == list_allowed_names(chain())
    assert chain(ToolSettings(profile="coding")).decide(spec("exec")).is_allowed
    assert set(PROFILES) == {"minimal", "coding", "messaging", "full"}


@pytest.mark.spec("C55")
def test_also_allow_extends_a_tool_list_and_never_overrides_a_deny() -> None:
    rules = ToolRules(allow=("read",), also_allow=("exec",), deny=("process",))
    assert list_allowed_names(chain(rules=rules)) == {"read", "exec", "system_time"}
    assert chain(ToolSettings(deny=("exec",)), rules).decide(spec("exec")).is_denied


@pytest.mark.spec("C55")
def test_only_the_most_specific_channel_tool_rules_apply() -> None:
    maria = address.parse_address("person:maria")
    settings = ToolSettings(
        by_channel={
            "irc:#home": ChannelToolSettings(
                deny=("exec",), by_sender={"person:maria": ToolListSettings(deny=("read",))}
            ),
            "*": ChannelToolSettings(deny=("*",), by_sender={"person:maria": ToolListSettings(deny=("write",))}),
        }
    )
    here = chain(settings, channel="irc:#home", sender=maria)
    assert here.decide(spec("read")).is_denied and here.decide(spec("exec")).is_allowed
    other = chain(settings, channel="irc:#home", sender=address.parse_address("person:bo"))
    assert other.decide(spec("exec")).is_denied and other.decide(spec("read")).is_allowed
    other_channel = chain(settings, channel="irc:#work", sender=maria)
    assert other_channel.decide(spec("write")).is_denied and other_channel.decide(spec("read")).is_allowed
    stranger = chain(settings, channel="irc:#work", sender=address.parse_address("person:bo"))
    assert stranger.decide(spec("read")).is_denied
    assert chain(settings, sender=maria).decide(spec("read")).is_allowed  # without a channel


@pytest.mark.spec("C55")
def test_tool_rules_of_all_speakers_in_a_group_apply_together() -> None:
    room = address.parse_address("channel:irc:#home")
    maria, stranger = address.parse_address("person:maria"), address.parse_address("channel:irc:8")
    settings = ToolSettings(
        by_sender={
            "channel:irc:8": ToolListSettings(deny=("exec",)),
            "channel:irc:#*": ToolListSettings(deny=("process",)),
        },
        by_channel={
            "irc:#home": ChannelToolSettings(deny=("*",), by_sender={"person:maria": ToolListSettings(deny=("write",))})
        },
    )

    def make_chain_for_speakers(*speakers: Address) -> ToolPolicyChain:
        return chain(settings, channel="irc:#home", sender=room, speakers=speakers)

    known = make_chain_for_speakers(maria)
    assert known.decide(spec("read")).is_allowed and known.decide(spec("exec")).is_allowed  # by her rules
    assert known.decide(spec("write")).is_denied and known.decide(spec("process")).is_denied
    assert make_chain_for_speakers(stranger).decide(spec("read")).is_denied
    for together in ((maria, stranger), (stranger, maria)):
        assert (
            make_chain_for_speakers(*together).decide(spec("read")).is_denied
            and make_chain_for_speakers(*together).decide(spec("exec")).is_denied
        )


# --- plugins, subagents, direct calls ---


@pytest.mark.spec("C56")
def test_an_allow_list_with_only_plugin_tools_hides_no_other_tool_and_warns() -> None:
    for entry in ("weather", "weather_*", "plugin:weather", "group:plugins", "weather_now"):
        adding = chain(rules=ToolRules(allow=(entry,)))
        assert {"read", "exec", "weather_now"} <= list_allowed_names(adding), entry
        assert any("names only plugins" in warning for warning in adding.warnings)
    mixed = chain(rules=ToolRules(allow=("weather", "read")))
    assert list_allowed_names(mixed) == {"weather_now", "weather_soon", "read", "system_time"} and not mixed.warnings
    assert list_allowed_names(chain(rules=ToolRules(deny=("weather",)))).isdisjoint({"weather_now", "weather_soon"})


@pytest.mark.spec("C122.whatsapp_login")
def test_an_unsupported_tool_name_in_a_list_is_warned_about_with_the_reason() -> None:
    [warning_text] = chain(ToolSettings(deny=("whatsapp_login",))).warnings
    assert (
        warning_text.startswith("tools.deny names 'whatsapp_login', which is not a known tool: ")
        and "WhatsApp" in warning_text
    )


@pytest.mark.spec("C56")
def test_unknown_tool_names_in_lists_are_warned_about() -> None:
    warned = chain(ToolSettings(deny=("exce",)), ToolRules(allow=("*",), ask=("lauch_*",))).warnings
    assert warned == [
        "tools.deny names 'exce', which is not a known tool",
        "agents.ada.tools.ask names 'lauch_*', which is not a known tool",
    ]
    # A server without a browser may still deny it.
    assert chain(ToolSettings(deny=("browser", "group:web")), known=CORE[:3]).warnings == []


@pytest.mark.spec("C119")
def test_subagents_are_denied_certain_tools_that_no_list_can_allow() -> None:
    listed = (
        *("sessions_list", "sessions_history", "sessions_send", "sessions_spawn", "gateway", "agents_list"),
        *("whatsapp_login", "session_status", "cron", "memory_search", "memory_get", "agents_message"),
        *("start_background_agent", "schedule_add", "grant_permission", "memory_write"),
    )
    generous = ToolSettings(
        also_allow=("*",), by_session={"subagent": ToolListSettings(allow=("*",), also_allow=listed)}
    )
    child = chain(generous, ToolRules(also_allow=("*",)), origin=OriginKind.SUBAGENT)
    parent = chain(generous)
    for name in listed:
        assert child.decide(spec(name)).is_denied and parent.decide(spec(name)).is_allowed, name
    for name in ("read", "exec", "web_fetch", "send_agent_message"):
        assert child.decide(spec(name)).is_allowed
    narrow = ToolSettings(by_session={"subagent": ToolListSettings(allow=("read",))})
    assert list_allowed_names(chain(narrow, origin=OriginKind.SUBAGENT)) == {"read"}
    assert len(SUBAGENT_DENIED) == len(set(SUBAGENT_DENIED))


@pytest.mark.spec("C93")
@pytest.mark.parametrize(
    "call_source", [call_source for call_source in CallSource if call_source is not CallSource.MODEL]
)
def test_a_direct_tool_call_has_a_further_deny_list_that_only_invoke_allow_opens(call_source: CallSource) -> None:
    direct = chain(call_source=call_source)
    assert set(NAMES) - list_allowed_names(direct) == set(INVOKE_DENIED)
    opened = chain(ToolSettings(invoke_allow=("write",)), call_source=call_source)
    assert list_allowed_names(opened) - list_allowed_names(direct) == {"write"}
    assert chain(rules=ToolRules(also_allow=("exec",)), call_source=call_source).decide(spec("exec")).is_denied
    assert set(INVOKE_DENIED) <= list_allowed_names(chain(call_source=CallSource.MODEL))


def test_operation_tools_are_offered_only_to_agents_whose_rules_name_them() -> None:
    agent_set = spec("agent_set", by_name=True)
    assert chain(known=(*CORE, agent_set)).decide(agent_set).is_denied
    assert chain(rules=ToolRules(also_allow=("agent_*",)), known=(*CORE, agent_set)).decide(agent_set).is_allowed
    assert chain(rules=ToolRules(allow=("agent_set",)), known=(*CORE, agent_set)).decide(agent_set).is_allowed
    asked = chain(rules=ToolRules(ask=("agent_set",)), known=(*CORE, agent_set)).decide(agent_set)
    assert asked.kind is DecisionKind.ASK


def test_an_undeclared_tool_policy_or_profile_allows_nothing() -> None:
    lost = chain(rules=ToolRules(policy="careful"))
    assert list_allowed_names(lost) == set()
    assert "careful (not declared)" in lost.decide(spec("read")).because
    assert list_allowed_names(chain(rules=ToolRules(profile="cooking"))) == {"system_time"}


# --- explanations ---


@pytest.mark.spec("C57")
def test_a_denied_tool_names_the_rule_and_the_setting_key() -> None:
    denied = chain(ToolSettings(deny=("group:web",))).decide(spec("web_fetch"))
    assert denied.because == "the server denies 'web_fetch'" and denied.setting_key == "tools.deny"
    denied = chain(ToolSettings(by_provider={"openai": ToolListSettings(deny=("exec",))}), provider="openai").decide(
        spec("exec")
    )
    assert denied.setting_key == "tools.by_provider.openai.deny" and "openai" in denied.because
    denied = chain(rules=ToolRules(profile="minimal")).decide(spec("exec"))
    assert denied.setting_key == "agents.ada.tools.profile" and "'minimal'" in denied.because
    denied = chain(rules=ToolRules(capabilities_deny=("terminal.*",))).decide(spec("exec", "terminal.exec"))
    assert denied.setting_key == "agents.ada.tools.capabilities_deny"


@pytest.mark.spec("C55")
def test_tool_policy_layers_are_in_the_documented_order() -> None:
    settings = ToolSettings(
        by_provider={"openai": ToolListSettings()},
        by_session={"terminal": ToolListSettings()},
        by_sender={"person:maria": ToolListSettings()},
        policies={"careful": ToolListSettings()},
    )
    rules = ToolRules(policy="careful", by_provider={"openai": ToolLists()})
    whole = chain(
        settings, rules, provider="openai", sender=address.parse_address("person:maria"), call_source=CallSource.INVOKE
    )
    assert [layer.key for layer in whole.layers] == [
        *("tools", "tools.by_provider.openai", "tools.policies.careful", "agents.ada.tools"),
        *("agents.ada.tools.by_provider.openai", "tools.by_session.schedule", "tools.by_session.chat"),
        "tools.by_session.terminal",
        *("tools.by_sender.person:maria", "tools.invoke_allow"),
    ]
    assert [finding.verdict for finding in whole.findings(spec("read"))] == [DecisionKind.ALLOW] * 10


# --- properties ---

globs = st.lists(
    st.sampled_from([*NAMES, "*", "web_*", "group:fs", "group:web", "sessions", "weather", "nothing"]), max_size=3
).map(tuple)
lists = st.builds(
    ToolLists,
    allow=globs,
    also_allow=globs,
    ask=globs,
    deny=globs,
    capabilities_allow=st.sampled_from([("*",), (), ("a.*",)]),
    capabilities_deny=st.sampled_from([(), ("b.*",)]),
    profile=st.sampled_from([None, "minimal", "coding", "full"]),
)
specs = st.builds(
    spec,
    st.sampled_from([*NAMES, "weather_now"]),
    st.sampled_from(["a.x", "b.y"]),
    source=st.sampled_from(["built_in", "plugin:weather"]),
)
STRICTNESS = {DecisionKind.ALLOW: 0, DecisionKind.ASK: 1, DecisionKind.DENY: 2}


@given(st.lists(lists, max_size=3), lists, specs)
def test_a_further_tool_policy_layer_never_loosens_a_decision(
    before: list[ToolLists], more: ToolLists, tool: ToolSpec
) -> None:
    def layer(number: int, lists: ToolLists) -> PolicyLayer:
        return PolicyLayer(name=f"layer {number}", key=f"k{number}", lists=lists)

    few = [layer(number, each) for number, each in enumerate(before)]
    without = ToolPolicyChain(few, (*CORE, *PLUGIN)).decide(tool)
    with_it = ToolPolicyChain([*few, layer(9, more)], (*CORE, *PLUGIN)).decide(tool)
    assert STRICTNESS[with_it.kind] >= STRICTNESS[without.kind]


@given(st.lists(lists, min_size=1, max_size=4), specs)
def test_the_tool_policy_decision_is_the_strictest_verdict_of_all_layers(
    layers: list[ToolLists], tool: ToolSpec
) -> None:
    whole = ToolPolicyChain(
        [PolicyLayer(name=f"{n}", key=f"k{n}", lists=each) for n, each in enumerate(layers)], (*CORE, *PLUGIN)
    )
    worst = max((finding.verdict for finding in whole.findings(tool)), key=STRICTNESS.__getitem__)
    assert whole.decide(tool).kind is worst


@given(lists, specs, st.sampled_from(NAMES))
def test_a_further_tool_deny_entry_never_loosens_a_decision(rules: ToolLists, tool: ToolSpec, name: str) -> None:
    from retinue.domain.structs import replace

    before = ToolPolicyChain([PolicyLayer(name="l", key="k", lists=rules)], CORE).decide(tool)
    after = ToolPolicyChain(
        [PolicyLayer(name="l", key="k", lists=replace(rules, deny=(*rules.deny, name)))], CORE
    ).decide(tool)
    assert STRICTNESS[after.kind] >= STRICTNESS[before.kind]
    if tool.name == name:
        assert after.is_denied


# --- subagents ---


def test_a_subagent_may_use_only_tools_that_all_its_parents_may_use() -> None:
    tool, named = spec("append"), spec("server_ledger", by_name=True)
    settings = ToolSettings()

    def make_parent_chain(name: str, **lists: Any) -> ToolPolicyChain:
        agent = Agent(name=name, tools=ToolRules(**lists))
        return ToolPolicyChain(
            build_layers(settings, agent, ToolPolicyContext(origin=OriginKind.SUBAGENT)), (tool, named)
        )

    def make_subagent_chain(child: dict[str, Any], *senders: dict[str, Any]) -> ToolPolicyChain:
        agent = Agent(name="bo", tools=ToolRules(**child))
        above = [make_parent_chain(f"sender-{n}", **lists) for n, lists in enumerate(senders)]
        where = ToolPolicyContext(origin=OriginKind.SUBAGENT)
        return ToolPolicyChain(build_layers(settings, agent, where), (tool, named), parents=above)

    assert make_subagent_chain({}, {}).decide(tool).is_allowed
    denied = make_subagent_chain({}, {}, {"deny": ("append",)}).decide(tool)
    assert denied.is_denied and denied.setting_key == "agents.sender-1.tools.deny"
    assert make_subagent_chain({}, {"ask": ("append",)}).decide(tool).kind is DecisionKind.ASK
    assert make_subagent_chain({"deny": ("append",)}, {}).decide(tool).is_denied
    # Each layer must name a tool that has to be named.
    both = {"also_allow": ("server_ledger",)}
    assert make_subagent_chain(both, both).decide(named).is_allowed
    assert make_subagent_chain(both, {}).decide(named).is_denied
    assert make_subagent_chain({}, both).decide(named).is_denied
    layers = [finding.layer for finding in make_subagent_chain({}, {}).findings(tool)]
    assert len(layers) == len(set(layers)), "a rule that applies to all is listed once"


def test_tool_rules_for_the_run_principal_only_restrict() -> None:
    guest, owner = address.person_address("guest"), address.person_address("owner")
    asker = address.agent_address("ada", "5" * 32)
    settings = ToolSettings(
        by_sender={
            "person:guest": ToolListSettings(deny=("exec",)),
            "person:owner": ToolListSettings(also_allow=("server_ledger",)),
        },
        by_channel={"telegram:42": ChannelToolSettings(deny=("write",))},
    )
    named = spec("server_ledger", by_name=True)
    known = (*CORE, named)
    direct = chain(settings, known=known, sender=guest)
    through = chain(settings, known=known, sender=asker, principal=guest)
    assert not chain(settings, known=known, sender=asker).decide(spec("exec")).is_denied
    for each in (direct, through):
        assert each.decide(spec("exec")).setting_key == "tools.by_sender.person:guest.deny"
    assert chain(settings, known=known, sender=owner).decide(named).is_allowed
    assert chain(settings, known=known, sender=asker, principal=owner).decide(named).is_denied
    room = address.parse_address("channel:telegram:42")
    assert chain(settings, known=known, sender=asker, principal=room).decide(spec("write")).is_denied
    assert not chain(settings, known=known, sender=asker, principal=owner).decide(spec("write")).is_denied


def test_tool_rules_for_the_speakers_of_the_run_principal_apply_to_delegated_work() -> None:
    room, asker = address.parse_address("channel:irc:#home"), address.parse_address("agent:ada")
    maria, stranger = address.parse_address("person:maria"), address.parse_address("channel:irc:8")
    settings = ToolSettings(
        by_sender={"channel:irc:8": ToolListSettings(deny=("exec",))},
        by_channel={
            "irc:#home": ChannelToolSettings(
                deny=("read",), by_sender={"person:maria": ToolListSettings(deny=("write",))}
            )
        },
    )

    def through(*speakers: Address) -> ToolPolicyChain:
        return chain(settings, sender=asker, principal=room, principal_speakers=speakers)

    assert through(maria).decide(spec("read")).is_allowed and through(maria).decide(spec("write")).is_denied
    assert through(stranger).decide(spec("exec")).setting_key == "tools.by_sender.channel:irc:8.deny"
    assert through(stranger).decide(spec("read")).is_denied and through().decide(spec("read")).is_denied
    both = through(maria, stranger)
    assert all(both.decide(spec(name)).is_denied for name in ("exec", "read", "write"))


def test_the_tool_policy_cache_key_contains_every_field_except_the_sender_fields() -> None:
    asks = {"sender", "speakers", "principal", "principal_speakers", "requesters", "channel"}
    others = {
        "provider": "openai",
        "model": "gpt",
        "origin": OriginKind.CHAT,
        "call_source": CallSource.MCP,
        "hidden_tools": ("exec",),
        "is_read_only": True,
        "has_browser": False,
        "parent_agents": (Agent(name="bo"),),
    }
    assert set(ToolPolicyContext._fields) == asks | set(others)
    plain = ToolPolicyContext().key_without_sender
    for name, value in others.items():
        assert ToolPolicyContext(**{name: value}).key_without_sender != plain, name
