"""Which tools an agent has: layers of rules, each of which can only take away."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.config.tools import ChannelLists, Lists, ToolSettings
from retinue.domain import address
from retinue.domain.address import Address
from retinue.domain.agent import Agent, ToolLists, ToolRules
from retinue.domain.decision import Verdict
from retinue.domain.session import OriginKind
from retinue.domain.tool import ToolSpec
from retinue.policy.tools.tool_groups import GROUPS, INVOKE_DENIED, PROFILES, SUBAGENT_DENIED, expanded
from retinue.policy.tools.tools import Chain, Circumstances, Door, Layer, layers_for
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


def spec(name: str, *capabilities: str, source: str = "house", by_name: bool = False) -> ToolSpec:
    return ToolSpec(
        name=name,
        description="",
        parameters={},
        capabilities=frozenset(capabilities),
        source=source,
        by_name=by_name,
    )


CORE = tuple(spec(name) for name in NAMES)
PLUGIN = (spec("weather_now", source="plugin:weather"), spec("weather_soon", source="plugin:weather"))


def chain(
    settings: ToolSettings | None = None,
    rules: ToolRules | None = None,
    *,
    known: tuple[ToolSpec, ...] = (*CORE, *PLUGIN),
    **where: Any,
) -> Chain:
    agent = Agent(name="ada", tools=rules or ToolRules())
    return Chain(layers_for(settings or ToolSettings(), agent, Circumstances(**where)), known)


def offered(chain: Chain, *specs: ToolSpec) -> set[str]:
    return {each.name for each in (specs or (*CORE, *PLUGIN)) if not chain.decide(each).denied}


# --- lists ---


@pytest.mark.spec("A84", "A38")
def test_an_agent_without_lists_has_all_tools_and_one_with_an_empty_list_has_none() -> None:
    assert offered(chain()) == {*NAMES, "weather_now", "weather_soon"}
    assert offered(chain(rules=ToolRules(allow=()))) == {"system_time"}
    assert offered(chain(ToolSettings(allow=()))) == set()


@pytest.mark.spec("A84")
def test_system_tools_pass_an_agents_own_lists_but_not_the_owners_deny() -> None:
    for rules in (
        ToolRules(allow=("read",)),
        ToolRules(deny=("*",)),
        ToolRules(capabilities_allow=()),
        ToolRules(capabilities_deny=("*",)),
    ):
        assert chain(rules=rules).decide(spec("system_time", "time.read")).allowed
    assert chain(ToolSettings(deny=("system_*",))).decide(spec("system_time")).denied
    assert chain(rules=ToolRules(deny=("*",))).decide(spec("read")).denied


@pytest.mark.spec("A84", "A37")
def test_deny_is_applied_after_allow_and_capabilities_after_both() -> None:
    rules = ToolRules(allow=("read", "web_*"), deny=("web_fetch",))
    assert offered(chain(rules=rules)) == {"read", "web_search", "system_time"}
    both = spec("notes", "notes.read", "notes.write")
    assert chain(rules=ToolRules(capabilities_allow=("notes.*",))).decide(both).allowed
    assert chain(rules=ToolRules(capabilities_allow=("notes.read",))).decide(both).denied  # every one must be allowed
    assert chain(rules=ToolRules(capabilities_deny=("notes.write",))).decide(both).denied  # any one denied is enough
    assert chain(rules=ToolRules(capabilities_allow=())).decide(both).denied
    assert chain(rules=ToolRules(capabilities_allow=())).decide(spec("bare")).allowed  # it has no capabilities


@pytest.mark.spec("A84")
def test_agents_tools_obey_the_same_lists_and_can_be_switched_off_as_a_whole() -> None:
    assert chain(rules=ToolRules(deny=("agents_message",))).decide(spec("agents_message")).denied
    off = chain(ToolSettings(agents_enabled=False))
    assert {"agents_list", "agents_message"}.isdisjoint(offered(off))
    assert off.decide(spec("agents_list")).key == "tools.agents_enabled"


def test_what_is_asked_about_is_there_whatever_else_the_same_list_allows() -> None:
    assert chain(rules=ToolRules(allow=(), ask=("read",))).decide(spec("read")).verdict is Verdict.ASK
    assert chain(rules=ToolRules(profile="minimal", ask=("read",))).decide(spec("read")).verdict is Verdict.ASK
    assert chain(ToolSettings(allow=()), ToolRules(ask=("read",))).decide(spec("read")).denied  # by another layer
    assert chain(rules=ToolRules(deny=("read",), ask=("read",))).decide(spec("read")).denied


def test_names_are_compared_without_case_and_only_a_star_is_special() -> None:
    assert matches_glob("WEB_*", "web_fetch") and matches_glob("*", "") and matches_glob("a*b*c", "a--b--c")
    assert (
        not matches_glob("web.", "web_")
        and not matches_glob("[rw]*", "read")
        and not matches_glob("re?d", "read")
        and not matches_glob("", "read")
    )
    assert chain(rules=ToolRules(deny=("Bash",))).decide(spec("exec")).denied  # an old name for it


@given(st.lists(st.sampled_from(["a", "b", "*", ".", "["]), max_size=12), st.text("ab.[", max_size=12))
def test_a_glob_fits_what_a_backtracking_matcher_says(pattern: list[str], text: str) -> None:
    def slow(glob: str, rest: str) -> bool:
        if not glob:
            return not rest
        if glob[0] == "*":
            return any(slow(glob[1:], rest[i:]) for i in range(len(rest) + 1))
        return bool(rest) and rest[0] == glob[0] and slow(glob[1:], rest[1:])

    assert matches_glob("".join(pattern), text) == slow("".join(pattern), text)


# --- groups and profiles ---


@pytest.mark.spec("C120")
def test_groups_expand_by_either_name_and_by_a_glob() -> None:
    files = {"read", "write", "edit", "ls", "find"}
    commands = {"exec", "process"}
    web = {"web_search", "web_fetch", "browser", "browser_act"}
    sessions = {"sessions_list", "sessions_history", "sessions_send", "sessions_spawn"}
    admin = {"gateway", "agents_list", "cron"}
    expected = {"file": files, "fs": files, "exec": commands, "runtime": commands, "web": web, "sessions": sessions}
    for name, tools in (expected | {"admin": admin}).items():
        assert set(expanded((f"group:{name}",), {})) == tools
        assert offered(chain(ToolSettings(allow=(f"group:{name}",)))) == tools
    for name in ("file", "fs", "runtime", "web", "sessions", "admin"):
        assert set(expanded((name,), {})) == set(GROUPS[name])
    assert expanded(("exec",), {}) == ("exec",)  # alone, it is the tool
    assert {*files, *commands, *web, *sessions, *admin} <= set(expanded(("group:*",), {}))


@pytest.mark.spec("C120")
@pytest.mark.parametrize(
    ("settings", "rules", "where"),
    [
        (ToolSettings(deny=("exec",)), ToolRules(), {}),
        (ToolSettings(by_provider={"openai": Lists(deny=("exec",))}), ToolRules(), {}),
        (ToolSettings(by_provider={"OpenAI/gpt-5": Lists(deny=("exec",))}), ToolRules(), {}),
        (ToolSettings(), ToolRules(deny=("exec",)), {}),
        (ToolSettings(), ToolRules(by_provider={"openai": ToolLists(deny=("exec",))}), {}),
        (ToolSettings(by_session={"subagent": Lists(deny=("exec",))}), ToolRules(), {"origin": OriginKind.SUBAGENT}),
        (ToolSettings(policies={"careful": Lists(deny=("exec",))}), ToolRules(policy="careful"), {}),
        (ToolSettings(by_sender={"person:*": Lists(deny=("exec",))}), ToolRules(), {}),
        (ToolSettings(by_channel={"*": ChannelLists(deny=("exec",))}), ToolRules(), {"channel": "irc:#home"}),
    ],
)
def test_each_place_where_rules_stand_is_read(settings: ToolSettings, rules: ToolRules, where: dict[str, Any]) -> None:
    here: dict[str, Any] = {"provider": "openai", "model": "gpt-5", "sender": address.parse("person:maria")} | where
    assert chain(settings, rules, **here).decide(spec("exec")).denied
    assert not chain(settings, rules, **here).decide(spec("read")).denied
    elsewhere: dict[str, Any] = {"provider": "google", "sender": address.parse("agent:bo")}
    if settings.by_provider or settings.by_sender or rules.by_provider:
        assert chain(settings, rules, **elsewhere).decide(spec("exec")).allowed


@pytest.mark.spec("C55")
def test_rules_for_a_model_go_before_those_for_its_provider() -> None:
    rules = ToolSettings(by_provider={"openai": Lists(deny=("exec",)), "openai/gpt-5": Lists(deny=("read",))})
    small = chain(rules, provider="openai", model="gpt-5-mini")
    large = chain(rules, provider="openai", model="gpt-5")
    assert small.decide(spec("exec")).denied and small.decide(spec("read")).allowed
    assert large.decide(spec("exec")).allowed and large.decide(spec("read")).denied


@pytest.mark.spec("C55", "C113.tools")
def test_profiles_are_added_to_and_an_agents_takes_the_place_of_the_houses() -> None:
    assert offered(chain(ToolSettings(profile="minimal"))) == {"session_status"}
    more = ToolSettings(profile="minimal", also_allow=("web_fetch",))
    assert offered(chain(more)) == {"session_status", "web_fetch"}
    own = chain(more, ToolRules(profile="messaging"))
    assert offered(own) == {"message", "sessions_list", "sessions_history", "sessions_send", "session_status"} | {
        "system_time"
    }
    assert offered(chain(ToolSettings(profile="full"))) == offered(chain())
    assert chain(ToolSettings(profile="coding")).decide(spec("exec")).allowed
    assert set(PROFILES) == {"minimal", "coding", "messaging", "full"}


@pytest.mark.spec("C55")
def test_also_allow_adds_to_a_list_and_never_beats_a_deny() -> None:
    rules = ToolRules(allow=("read",), also_allow=("exec",), deny=("process",))
    assert offered(chain(rules=rules)) == {"read", "exec", "system_time"}
    assert chain(ToolSettings(deny=("exec",)), rules).decide(spec("exec")).denied


@pytest.mark.spec("C55")
def test_the_nearest_rules_of_a_channel_count_alone() -> None:
    maria = address.parse("person:maria")
    settings = ToolSettings(
        by_channel={
            "irc:#home": ChannelLists(deny=("exec",), by_sender={"person:maria": Lists(deny=("read",))}),
            "*": ChannelLists(deny=("*",), by_sender={"person:maria": Lists(deny=("write",))}),
        }
    )
    here = chain(settings, channel="irc:#home", sender=maria)
    assert here.decide(spec("read")).denied and here.decide(spec("exec")).allowed
    other = chain(settings, channel="irc:#home", sender=address.parse("person:bo"))
    assert other.decide(spec("exec")).denied and other.decide(spec("read")).allowed
    abroad = chain(settings, channel="irc:#work", sender=maria)
    assert abroad.decide(spec("write")).denied and abroad.decide(spec("read")).allowed
    stranger = chain(settings, channel="irc:#work", sender=address.parse("person:bo"))
    assert stranger.decide(spec("read")).denied
    assert chain(settings, sender=maria).decide(spec("read")).allowed  # from no channel at all


@pytest.mark.spec("C55")
def test_in_a_room_the_rules_for_everyone_who_spoke_hold_and_nobody_gains_by_speaking_after_another() -> None:
    room = address.parse("channel:irc:#home")
    maria, stranger = address.parse("person:maria"), address.parse("channel:irc:8")
    settings = ToolSettings(
        by_sender={"channel:irc:8": Lists(deny=("exec",)), "channel:irc:#*": Lists(deny=("process",))},
        by_channel={"irc:#home": ChannelLists(deny=("*",), by_sender={"person:maria": Lists(deny=("write",))})},
    )

    def spoken_by(*speakers: Address) -> Chain:
        return chain(settings, channel="irc:#home", sender=room, speakers=speakers)

    known = spoken_by(maria)
    assert known.decide(spec("read")).allowed and known.decide(spec("exec")).allowed  # hers count, not the room's
    assert known.decide(spec("write")).denied and known.decide(spec("process")).denied
    assert spoken_by(stranger).decide(spec("read")).denied
    for together in ((maria, stranger), (stranger, maria)):
        assert spoken_by(*together).decide(spec("read")).denied and spoken_by(*together).decide(spec("exec")).denied


# --- plug-ins, subagents, direct calls ---


@pytest.mark.spec("C56")
def test_a_list_of_nothing_but_plugin_tools_hides_no_other_and_says_so() -> None:
    for entry in ("weather", "weather_*", "plugin:weather", "group:plugins", "weather_now"):
        adding = chain(rules=ToolRules(allow=(entry,)))
        assert {"read", "exec", "weather_now"} <= offered(adding), entry
        assert any("names only plug-ins" in warning for warning in adding.warnings)
    mixed = chain(rules=ToolRules(allow=("weather", "read")))
    assert offered(mixed) == {"weather_now", "weather_soon", "read", "system_time"} and not mixed.warnings
    assert offered(chain(rules=ToolRules(deny=("weather",)))).isdisjoint({"weather_now", "weather_soon"})


@pytest.mark.spec("C122.whatsapp_login")
def test_a_tool_that_other_houses_have_is_refused_by_its_name_with_the_reason() -> None:
    [told] = chain(ToolSettings(deny=("whatsapp_login",))).warnings
    assert told.startswith("tools.deny names 'whatsapp_login', and there is no such tool: ") and "WhatsApp" in told


@pytest.mark.spec("C56")
def test_names_that_no_tool_has_are_warned_about() -> None:
    warned = chain(ToolSettings(deny=("exce",)), ToolRules(allow=("*",), ask=("lauch_*",))).warnings
    assert warned == [
        "tools.deny names 'exce', and there is no such tool",
        "agents.ada.tools.ask names 'lauch_*', and there is no such tool",
    ]
    # A house without a browser may still say that nobody is to use one.
    assert chain(ToolSettings(deny=("browser", "group:web")), known=CORE[:3]).warnings == []


@pytest.mark.spec("C119")
def test_subagents_are_denied_what_reaches_beyond_their_task_and_no_list_gives_it_back() -> None:
    listed = (
        *("sessions_list", "sessions_history", "sessions_send", "sessions_spawn", "gateway", "agents_list"),
        *("whatsapp_login", "session_status", "cron", "memory_search", "memory_get", "agents_message"),
        *("start_background_agent", "schedule_add", "grant_permission", "memory_write"),
    )
    generous = ToolSettings(also_allow=("*",), by_session={"subagent": Lists(allow=("*",), also_allow=listed)})
    child = chain(generous, ToolRules(also_allow=("*",)), origin=OriginKind.SUBAGENT)
    parent = chain(generous)
    for name in listed:
        assert child.decide(spec(name)).denied and parent.decide(spec(name)).allowed, name
    for name in ("read", "exec", "web_fetch", "send_agent_message"):
        assert child.decide(spec(name)).allowed
    narrow = ToolSettings(by_session={"subagent": Lists(allow=("read",))})
    assert offered(chain(narrow, origin=OriginKind.SUBAGENT)) == {"read"}
    assert len(SUBAGENT_DENIED) == len(set(SUBAGENT_DENIED))


@pytest.mark.spec("C93")
@pytest.mark.parametrize("door", [door for door in Door if door is not Door.MODEL])
def test_a_direct_call_has_a_further_deny_list_that_only_the_owner_can_open(door: Door) -> None:
    direct = chain(door=door)
    assert set(NAMES) - offered(direct) == set(INVOKE_DENIED)
    opened = chain(ToolSettings(invoke_allow=("write",)), door=door)
    assert offered(opened) - offered(direct) == {"write"}
    assert chain(rules=ToolRules(also_allow=("exec",)), door=door).decide(spec("exec")).denied
    assert set(INVOKE_DENIED) <= offered(chain(door=Door.MODEL))


def test_operations_are_only_for_agents_whose_rules_name_them() -> None:
    agent_set = spec("agent_set", by_name=True)
    assert chain(known=(*CORE, agent_set)).decide(agent_set).denied
    assert chain(rules=ToolRules(also_allow=("agent_*",)), known=(*CORE, agent_set)).decide(agent_set).allowed
    assert chain(rules=ToolRules(allow=("agent_set",)), known=(*CORE, agent_set)).decide(agent_set).allowed
    asked = chain(rules=ToolRules(ask=("agent_set",)), known=(*CORE, agent_set)).decide(agent_set)
    assert asked.verdict is Verdict.ASK


def test_a_policy_or_profile_that_is_not_declared_lets_nothing_pass() -> None:
    lost = chain(rules=ToolRules(policy="careful"))
    assert offered(lost) == set()
    assert "careful, which is not declared" in lost.decide(spec("read")).because
    assert offered(chain(rules=ToolRules(profile="cooking"))) == {"system_time"}


# --- saying why ---


@pytest.mark.spec("C57")
def test_a_refusal_names_the_rule_and_the_key_to_change() -> None:
    denied = chain(ToolSettings(deny=("group:web",))).decide(spec("web_fetch"))
    assert denied.because == "the house denies 'web_fetch'" and denied.key == "tools.deny"
    denied = chain(ToolSettings(by_provider={"openai": Lists(deny=("exec",))}), provider="openai").decide(spec("exec"))
    assert denied.key == "tools.by_provider.openai.deny" and "openai" in denied.because
    denied = chain(rules=ToolRules(profile="minimal")).decide(spec("exec"))
    assert denied.key == "agents.ada.tools.profile" and "'minimal'" in denied.because
    denied = chain(rules=ToolRules(capabilities_deny=("terminal.*",))).decide(spec("exec", "terminal.exec"))
    assert denied.key == "agents.ada.tools.capabilities_deny"


@pytest.mark.spec("C55")
def test_the_layers_stand_in_the_order_of_the_design() -> None:
    settings = ToolSettings(
        by_provider={"openai": Lists()},
        by_session={"terminal": Lists()},
        by_sender={"person:maria": Lists()},
        policies={"careful": Lists()},
    )
    rules = ToolRules(policy="careful", by_provider={"openai": ToolLists()})
    whole = chain(settings, rules, provider="openai", sender=address.parse("person:maria"), door=Door.INVOKE)
    assert [layer.key for layer in whole.layers] == [
        *("tools", "tools.by_provider.openai", "tools.policies.careful", "agents.ada.tools"),
        *("agents.ada.tools.by_provider.openai", "tools.by_session.schedule", "tools.by_session.chat"),
        "tools.by_session.terminal",
        *("tools.by_sender.person:maria", "tools.invoke_allow"),
    ]
    assert [finding.verdict for finding in whole.findings(spec("read"))] == [Verdict.ALLOW] * 10


# --- what always holds ---

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
    source=st.sampled_from(["house", "plugin:weather"]),
)
RANK = {Verdict.ALLOW: 0, Verdict.ASK: 1, Verdict.DENY: 2}


@given(st.lists(lists, max_size=3), lists, specs)
def test_a_further_layer_never_gives_anything_back(before: list[ToolLists], more: ToolLists, tool: ToolSpec) -> None:
    def layer(number: int, lists: ToolLists) -> Layer:
        return Layer(name=f"layer {number}", key=f"k{number}", lists=lists)

    few = [layer(number, each) for number, each in enumerate(before)]
    without = Chain(few, (*CORE, *PLUGIN)).decide(tool)
    with_it = Chain([*few, layer(9, more)], (*CORE, *PLUGIN)).decide(tool)
    assert RANK[with_it.verdict] >= RANK[without.verdict]


@given(st.lists(lists, min_size=1, max_size=4), specs)
def test_what_is_decided_is_the_worst_that_any_layer_found(layers: list[ToolLists], tool: ToolSpec) -> None:
    whole = Chain([Layer(name=f"{n}", key=f"k{n}", lists=each) for n, each in enumerate(layers)], (*CORE, *PLUGIN))
    worst = max((finding.verdict for finding in whole.findings(tool)), key=RANK.__getitem__)
    assert whole.decide(tool).verdict is worst


@given(lists, specs, st.sampled_from(NAMES))
def test_a_further_deny_never_helps(rules: ToolLists, tool: ToolSpec, name: str) -> None:
    from retinue.domain.structs import replace

    before = Chain([Layer(name="l", key="k", lists=rules)], CORE).decide(tool)
    after = Chain([Layer(name="l", key="k", lists=replace(rules, deny=(*rules.deny, name)))], CORE).decide(tool)
    assert RANK[after.verdict] >= RANK[before.verdict]
    if tool.name == name:
        assert after.denied


# --- whoever works for another ---


def test_what_any_of_its_senders_may_not_do_one_who_was_sent_out_may_not() -> None:
    tool, named = spec("append"), spec("house_ledger", by_name=True)
    settings = ToolSettings()

    def of(name: str, **lists: Any) -> Chain:
        agent = Agent(name=name, tools=ToolRules(**lists))
        return Chain(layers_for(settings, agent, Circumstances(origin=OriginKind.SUBAGENT)), (tool, named))

    def sent(child: dict[str, Any], *senders: dict[str, Any]) -> Chain:
        agent = Agent(name="bo", tools=ToolRules(**child))
        above = [of(f"sender-{n}", **lists) for n, lists in enumerate(senders)]
        where = Circumstances(origin=OriginKind.SUBAGENT)
        return Chain(layers_for(settings, agent, where), (tool, named), above=above)

    assert sent({}, {}).decide(tool).allowed
    denied = sent({}, {}, {"deny": ("append",)}).decide(tool)
    assert denied.denied and denied.key == "agents.sender-1.tools.deny"
    assert sent({}, {"ask": ("append",)}).decide(tool).verdict is Verdict.ASK
    assert sent({"deny": ("append",)}, {}).decide(tool).denied
    # What must be named must be named for each of them.
    both = {"also_allow": ("house_ledger",)}
    assert sent(both, both).decide(named).allowed
    assert sent(both, {}).decide(named).denied
    assert sent({}, both).decide(named).denied
    said = [finding.layer for finding in sent({}, {}).findings(tool)]
    assert len(said) == len(set(said)), "what is the same for all is said once"


def test_rules_for_whom_it_is_done_in_the_end_take_away_and_give_nothing() -> None:
    guest, owner = address.person("guest"), address.person("owner")
    asker = address.agent("ada", "5" * 32)
    settings = ToolSettings(
        by_sender={"person:guest": Lists(deny=("exec",)), "person:owner": Lists(also_allow=("house_ledger",))},
        by_channel={"telegram:42": ChannelLists(deny=("write",))},
    )
    named = spec("house_ledger", by_name=True)
    known = (*CORE, named)
    direct = chain(settings, known=known, sender=guest)
    through = chain(settings, known=known, sender=asker, behalf=guest)
    assert not chain(settings, known=known, sender=asker).decide(spec("exec")).denied
    for each in (direct, through):
        assert each.decide(spec("exec")).key == "tools.by_sender.person:guest.deny"
    assert chain(settings, known=known, sender=owner).decide(named).allowed
    assert chain(settings, known=known, sender=asker, behalf=owner).decide(named).denied
    room = address.parse("channel:telegram:42")
    assert chain(settings, known=known, sender=asker, behalf=room).decide(spec("write")).denied
    assert not chain(settings, known=known, sender=asker, behalf=owner).decide(spec("write")).denied


def test_work_for_whoever_spoke_in_a_room_is_bound_by_the_rules_for_them() -> None:
    room, asker = address.parse("channel:irc:#home"), address.parse("agent:ada")
    maria, stranger = address.parse("person:maria"), address.parse("channel:irc:8")
    settings = ToolSettings(
        by_sender={"channel:irc:8": Lists(deny=("exec",))},
        by_channel={"irc:#home": ChannelLists(deny=("read",), by_sender={"person:maria": Lists(deny=("write",))})},
    )

    def through(*speakers: Address) -> Chain:
        return chain(settings, sender=asker, behalf=room, behalf_speakers=speakers)

    assert through(maria).decide(spec("read")).allowed and through(maria).decide(spec("write")).denied
    assert through(stranger).decide(spec("exec")).key == "tools.by_sender.channel:irc:8.deny"
    assert through(stranger).decide(spec("read")).denied and through().decide(spec("read")).denied
    both = through(maria, stranger)
    assert all(both.decide(spec(name)).denied for name in ("exec", "read", "write"))


def test_rules_are_kept_by_all_that_they_depend_on() -> None:
    asks = {"sender", "speakers", "behalf", "behalf_speakers", "requesters", "channel"}
    others = {
        "provider": "openai",
        "model": "gpt",
        "origin": OriginKind.CHAT,
        "door": Door.MCP,
        "hidden": ("exec",),
        "read_only": True,
        "browser": False,
        "senders": (Agent(name="bo"),),
    }
    assert set(Circumstances._fields) == asks | set(others)
    plain = Circumstances().apart_from_who_asks
    for name, value in others.items():
        assert Circumstances(**{name: value}).apart_from_who_asks != plain, name
