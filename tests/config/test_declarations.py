"""Agents, people, bindings and schedules of the settings file are read and checked. Nothing is applied here."""

from __future__ import annotations

from pathlib import Path

import pytest
from config.data_directory import SettingsDirectory
from hypothesis import given
from hypothesis import strategies as st

from retinue.config import InvalidSettings, SecretReference, choose_default_agent, load_configuration, normalize_id
from retinue.config.agent_defaults import AgentDefaults
from retinue.config.declarations import EXTENDS_DEPTH_MAX, DeclaredScheduleKind
from retinue.config.declarations_export import export_declarations
from retinue.domain.address import validate_name
from retinue.domain.agent import (
    Agent,
    CrashPolicy,
    DelegationRules,
    ExternalAgentEndpoint,
    PermissionLevel,
    SubagentRules,
    ToolRules,
)
from retinue.domain.person import Role
from retinue.domain.session import QueueMode, QueuePolicy


def agents(home: SettingsDirectory, text: str) -> dict[str, Agent]:
    return {each.name: each for each in home.load(text).declarations.agents}


def test_an_agent_declared_with_every_field_is_read_completely(home: SettingsDirectory) -> None:
    text = """
    [agents.ada]
    description = "d"
    model = "m"
    instructions = "i"
    crash_policy = "at-most-once"
    concurrency = 1
    queue = { mode = "followup", cap = 3 }
    tools = { allow = ["a"], ask = ["b"], deny = ["c"] }
    delegation.other_sessions = true
    delegation.allow = ["bo"]
    delegation.deny = ["b*"]
    delegation.depth_max = 2
    delegation.open_max = 3
    delegation.exchanges_max = 4
    subagents = { allow = ["*"], model = "s", effort = "low", run_seconds_max = 5, archive_after_s = 0 }
    turns_max = 5
    run_seconds_max = 60
    tokens_max = 1000
    cost_microusd_max = 0
    attempts_max = 2
    replay_age_s = 0
    approval_wait_s = 1.5
    permission_level = "privileged"
    """
    assert agents(home, text)["ada"] == Agent(
        name="ada",
        description="d",
        model="m",
        instructions="i",
        crash_policy=CrashPolicy.AT_MOST_ONCE,
        concurrency=1,
        queue=QueuePolicy(mode=QueueMode.FOLLOWUP, cap=3),
        tools=ToolRules(allow=("a",), ask=("b",), deny=("c",)),
        delegation=DelegationRules(
            allow=("bo",), deny=("b*",), depth_max=2, open_max=3, exchanges_max=4, other_sessions=True
        ),
        subagents=SubagentRules(allow=("*",), model="s", effort="low", run_seconds_max=5.0, archive_after_s=0.0),
        turns_max=5,
        run_seconds_max=60.0,
        tokens_max=1000,
        cost_microusd_max=0,
        attempts_max=2,
        replay_age_s=0.0,
        approval_wait_s=1.5,
        permission_level=PermissionLevel.PRIVILEGED,
    )


def test_an_agent_declared_without_fields_has_the_defaults(home: SettingsDirectory) -> None:
    assert agents(home, "[agents.ada]") == {"ada": Agent(name="ada")}


@pytest.mark.spec("A2")
@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("[agents.Ada]\n[agents.ada]", "agents.ada"),
        ("[agents.night-clerk]\n[agents.'Night Clerk']", 'agents."Night Clerk"'),
        ("[agents.ada]\nrunner = 'lop'", "agents.ada.runner"),
        ("[templates.t]\nrunner = 'lop'\n[agents.ada]\nextends = 't'", "templates.t.runner"),
        ("[agents.ada]\nrunner = 'external'", "agents.ada.external.url"),
        ("[agents.ada]\nrunner = 'external'\nexternal = { }", "agents.ada.external.url"),
        ("[agents.ada]\nrunner = 'external'\nexternal = { url = 'ftp://x' }", "agents.ada.external.url"),
        ("[agents.ada]\nrunner = 'external'\nexternal = { url = 3 }", "agents.ada.external.url"),
        ("[agents.ada]\nrunner = 'external'\nexternal = { uri = 'https://x' }", "agents.ada.external.uri"),
        ("[agents.ada]\nexternal = { url = 'https://x' }", "agents.ada.external"),
        (
            "[agents.ada]\nrunner = 'external'\nexternal = { url = 'https://x', retries = 99 }",
            "agents.ada.external.retries",
        ),
        ("[agents.ada]\nworkspace = '../out'", "agents.ada.workspace"),
        ("[agents.ada]\nworkspace = '/'", "agents.ada.workspace"),
        ("[agents.ada]\nworkspace = ''", "agents.ada.workspace"),
        ("[agents.ada]\ndisplay_name = 'A\u202eda'", "agents.ada.display_name"),
        ("[agents.ada]\nsandbox = { mode = 'some' }", "agents.ada.sandbox.mode"),
        ("[agents.ada]\nsandbox = { image = '--privileged' }", "agents.ada.sandbox.image"),
        ("[agents.ada]\nsandbox = { hosts = ['x.example'] }", "agents.ada.sandbox.hosts"),
        ("[agents.ada]\nsubagents = { effort = 'some' }", "agents.ada.subagents.effort"),
        ("[agents.ada]\ndelegation = { depth_max = 11 }", "agents.ada.delegation.depth_max"),
        ("[defaults]\nverbose = 'loud'", "defaults.verbose"),
        ("[defaults]\ntime_format = '13'", "defaults.time_format"),
        ("[defaults]\nconcurrency = 0", "defaults.concurrency"),
        ("[sessions]\ndm_scope = 'per-mood'", "sessions.dm_scope"),
        ("[agents.ada]\ncrash_policy = 'twice'", "agents.ada.crash_policy"),
        ("[agents.ada]\nqueue = { mode = 'pile' }", "agents.ada.queue.mode"),
        ("[agents.ada]\nqueue = { cap = 0 }", "agents.ada.queue.cap"),
        ("[agents.ada]\ntools = { allow = ['a', 1] }", "agents.ada.tools.allow[1]"),
        ("[agents.ada]\nversion = 2", "agents.ada.version"),
        ("[agents.ada]\nname = 'bob'", "agents.ada.name"),
        ("[agents.ada]\nturns_max = 0", "agents.ada.turns_max"),
        ("[agents.background]", "agents.background"),
        ("[agents.'!']", 'agents."!"'),
        ("agents = 3", "agents"),
        ("[agents]\nada = 3", "agents.ada"),
        ("[people.maria]\nrole = 'boss'", "people.maria.role"),
        ("[people.maria]", "people.maria.role"),
        ("[schedules.s]\nagent = 'a'\nkind = 'corn'", "schedules.s.kind"),
        ("[schedules.s]\nagent = 'a'\nkind = 'cron'", "schedules.s.cron"),
        ("[schedules.s]\nagent = 'a'\nkind = 'cron'\ncron = '* * * * *'\nat = 'x'", "schedules.s.at"),
        ("[schedules.s]\nkind = 'every'\nevery_s = 5", "schedules.s.agent"),
        ("[bindings.b]\nagent = 'a'", "bindings.b.connector"),
        ("[bindings.b]\nagent = 'a'\nconnector = 'c'\nroom = 'x'", "bindings.b.room"),
        ("[bindings.b]\nagent='a'\nconnector='c'\n[bindings.d]\nagent='e'\nconnector='c'", "bindings.d"),
    ],
)
def test_an_invalid_agent_declaration_is_refused_with_its_exact_path(
    home: SettingsDirectory, text: str, path: str
) -> None:
    fault = home.fault(text)
    assert fault.path == path
    assert fault.because and fault.try_this


@pytest.mark.spec("A2")
def test_all_invalid_agent_declarations_are_reported_with_their_lines(home: SettingsDirectory) -> None:
    faults = home.faults("[agents.Ada]\n[agents.ada]\n[agents.x]\nrunner = 'external'\n[agents.y]\nrunner = 'openai'")
    assert {path: fault.position.line for path, fault in faults.items()} == {
        "agents.ada": 2,
        "agents.x.external.url": 3,
        "agents.y.runner": 6,
    }


def test_a_runner_of_a_plugin_is_accepted_in_an_agent_declaration(home: SettingsDirectory) -> None:
    home.write("[agents.ada]\nrunner = 'mine'")
    found = load_configuration(home.environment, runners=frozenset({"loop", "mine"}))
    assert found.declarations.agents[0].runner == "mine"


@pytest.mark.spec("A4")
def test_an_external_agent_is_declared_with_a_url_and_a_reference_to_its_secret(home: SettingsDirectory) -> None:
    text = """
    [agents.far]
    runner = "external"
    external = { url = "https://far.example/in", secret = { file = "keys/far" }, timeout_s = 60, retries = 0 }
    [agents.near]
    model = "m"
    """
    far, near = home.load(text).declarations.agents
    assert far.external == ExternalAgentEndpoint(
        url="https://far.example/in", secret=f"file:{home.folder / 'keys/far'}", timeout_s=60.0, retries=0
    )
    assert SecretReference.from_text(far.external.secret) == SecretReference(file=home.folder / "keys/far")
    assert SecretReference.from_text(SecretReference(env="FAR_KEY").as_text) == SecretReference(env="FAR_KEY")
    assert (near.runner, near.external) == (
        "loop",
        ExternalAgentEndpoint(),
    )  # the default runner
    assert home.load(export_declarations([far, near], [])).declarations.agents == (far, near)


# --- keys that are not supported yet ---


@pytest.mark.parametrize("key", ["memory_search", "memorySearch", "human_delay", "groupChat", "cli-backends"])
@pytest.mark.parametrize("section", ["agents.ada", "templates.careful", "defaults"])
def test_an_unsupported_agent_key_is_refused_as_not_supported_yet(
    home: SettingsDirectory, section: str, key: str
) -> None:
    with pytest.raises(InvalidSettings) as refused:
        home.load(f"[{section}]\n{key} = {{ enabled = true }}")
    assert refused.value.code == "config.not_supported"
    assert f"{section}.{key} is not supported yet" in refused.value.sentence
    assert "it would configure" in refused.value.because and "did you mean" not in refused.value.try_this
    assert refused.value.as_json()[0]["code"] == "config.not_supported"


def test_an_unknown_agent_key_is_refused_as_invalid(home: SettingsDirectory) -> None:
    with pytest.raises(InvalidSettings) as refused:
        home.load("[agents.ada]\nmemory_serch = 1")
    assert refused.value.code == "config.invalid"


# --- defaults of the instance ---


@pytest.mark.spec("C114.subagents_archive")
def test_fields_of_a_declared_agent_override_the_default_settings_and_the_built_in_defaults(
    home: SettingsDirectory,
) -> None:
    text = """
    [defaults]
    workspace = "/srv/work"
    effort = "low"
    concurrency = 2
    run_seconds_max = 60
    subagents = { model = "small", archive_after_s = 10 }
    [agents.ada]
    [agents.bo]
    workspace = "studio"
    effort = "high"
    concurrency = 1
    run_seconds_max = 5
    subagents = { model = "large", effort = "none", run_seconds_max = 3, archive_after_s = 0 }
    """
    found = home.load(text)
    server, (ada, bo), at = found.settings.defaults, found.declarations.agents, Path("/data/agents/x")
    for defaults, concurrency, seconds, effort, workspace in (
        (server, 2, 60.0, "low", Path("/srv/work/ada")),
        (AgentDefaults(), 4, 3600.0, None, at),
    ):
        assert (defaults.concurrency_of(ada), defaults.run_seconds_of(ada)) == (concurrency, seconds)
        assert (defaults.effort_of(ada), defaults.workspace_of(ada, at)) == (effort, workspace)
        assert (defaults.concurrency_of(bo), defaults.run_seconds_of(bo), defaults.effort_of(bo)) == (1, 5.0, "high")
        assert defaults.workspace_of(bo, at) == at / "studio"
        assert defaults.subagents_of(bo) == bo.subagents
    assert server.subagents_of(ada) == SubagentRules(model="small", archive_after_s=10.0)
    assert AgentDefaults().subagents_of(ada) == SubagentRules(archive_after_s=3600.0)
    relative = home.load('[defaults]\nworkspace = "work"').settings
    assert relative.defaults.workspace == relative.home / "work"


# --- templates ---


@pytest.mark.spec("A3")
def test_agent_templates_are_merged_in_order_and_the_declared_agent_overrides_them(home: SettingsDirectory) -> None:
    text = """
    [templates.base]
    model = "base"
    instructions = "base"
    turns_max = 7
    tools = { allow = ["a"], ask = ["b"] }
    [templates.mid]
    extends = "base"
    model = "mid"
    tools = { deny = ["c"] }
    [templates.other]
    instructions = "other"
    tools = { allow = ["x", "y"] }
    [agents.ada]
    extends = ["mid", "other"]
    tools = { ask = [] }
    """
    ada = agents(home, text)["ada"]
    assert (ada.model, ada.instructions, ada.turns_max) == ("mid", "other", 7)
    assert ada.tools == ToolRules(allow=("x", "y"), ask=(), deny=("c",))


@pytest.mark.spec("A3")
def test_a_cleared_key_of_a_declared_agent_is_not_inherited_and_has_its_default(home: SettingsDirectory) -> None:
    text = """
    [templates.t]
    instructions = "t"
    tokens_max = 5
    tools = { allow = ["a"], ask = ["b"] }
    [templates.u]
    extends = "t"
    clear = ["tokens_max"]
    [agents.ada]
    extends = "t"
    clear = ["tokens_max", "tools.allow"]
    [agents.bob]
    extends = ["u"]
    clear = ["tools"]
    tools = { deny = ["z"] }
    [agents.eve]
    extends = ["t", "u"]
    """
    staff = agents(home, text)
    assert (staff["ada"].instructions, staff["ada"].tokens_max) == ("t", None)
    assert staff["ada"].tools == ToolRules(ask=("b",))
    assert (staff["bob"].tokens_max, staff["bob"].tools) == (None, ToolRules(deny=("z",)))
    assert staff["eve"].tokens_max == 5  # inherited from the other parent


@pytest.mark.spec("A3")
def test_circular_agent_templates_are_refused_with_the_cycle(home: SettingsDirectory) -> None:
    fault = home.fault(
        "[templates.a]\nextends = ['x', 'b']\n[templates.b]\nextends = 'c'\n[templates.c]\nextends = 'a'\n[templates.x]"
    )
    assert fault.because == "a -> b -> c -> a"
    assert fault.path == "templates.c.extends"
    assert home.fault("[templates.a]\nextends = 'A'").because == "a -> a"


def test_a_declared_agent_that_extends_circular_templates_adds_no_second_error(home: SettingsDirectory) -> None:
    fault = home.fault("[templates.a]\nextends = 'b'\n[templates.b]\nextends = 'a'\n[agents.ada]\nextends = 'a'")
    assert "circular" in fault.sentence


def test_a_declared_agent_can_have_the_name_of_its_template(home: SettingsDirectory) -> None:
    assert agents(home, "[templates.ada]\nmodel = 'm'\n[agents.ada]\nextends = 'ada'")["ada"].model == "m"


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        ("[templates.calm]\n[agents.ada]\nextends = 'clam'", "agents.ada.extends", "did you mean `calm`?"),
        ("[agents.ada]\nextends = ['x']", "agents.ada.extends[0]", "[templates.x]"),
        ("[agents.ada]\nextends = 3", "agents.ada.extends", "name of a template or a list"),
        ("[agents.ada]\nextends = [3]", "agents.ada.extends[0]", "must be the name of a template"),
        ("[agents.ada]\nclear = 'x'", "agents.ada.clear", "list of keys"),
        ("[agents.ada]\nclear = ['modle']", "agents.ada.clear[0]", "did you mean `model`?"),
        ("[agents.ada]\nclear = ['tools.x']", "agents.ada.clear[0]", "not a key of an agent"),
        ("[templates.t]\nmodle = 'x'", "templates.t.modle", "did you mean `model`?"),
        ("[templates.t]\nturns_max = 'x'\n[agents.ada]\nextends = 't'", "templates.t.turns_max", "whole number"),
    ],
)
def test_an_error_in_an_agent_template_or_its_use_is_reported_at_its_own_path(
    home: SettingsDirectory, text: str, path: str, says: str
) -> None:
    fault = home.fault(text)
    assert fault.path == path
    assert fault.because and fault.try_this
    assert says in f"{fault.sentence} {fault.because} {fault.try_this}"


def test_the_depth_of_agent_templates_is_limited(home: SettingsDirectory) -> None:
    chain = "".join(f"[templates.t{n}]\nextends = 't{n + 1}'\n" for n in range(EXTENDS_DEPTH_MAX + 5))
    faults = home.faults(chain + f"[templates.t{EXTENDS_DEPTH_MAX + 5}]")
    assert any("too deep" in fault.sentence for fault in faults.values())


def test_an_agent_template_shared_by_many_templates_is_merged_once(home: SettingsDirectory) -> None:
    diamonds = "".join(f"[templates.t{n}]\nextends = ['t{n + 1}', 't{n + 1}', 't{n + 1}']\n" for n in range(18))
    text = diamonds + "[templates.t18]\nmodel = 'm'\n[agents.ada]\nextends = 't0'"
    assert agents(home, text)["ada"].model == "m"  # following each path separately would be 3^18 merges


# --- names and the default agent ---


@pytest.mark.spec("C5")
def test_agent_names_in_declarations_are_normalized(home: SettingsDirectory) -> None:
    staff = home.load(
        "[agents.'Night  Clerk!']\n[agents.Ada]\n[schedules.s]\nagent = 'night clerk'\nkind='every'\nevery_s=60"
    ).declarations
    assert [each.name for each in staff.agents] == ["night-clerk", "Ada"]
    assert staff.schedules["s"]["agent"] == "night-clerk"


@pytest.mark.spec("C5")
@pytest.mark.parametrize(
    ("text", "answers"),
    [
        ("[server]\ndefault_agent = 'ADA'\n[agents.main]\n[agents.Ada]", "Ada"),
        ("[server]\ndefault_agent = 'guide'\n[agents.main]", "guide"),
        ("[agents.ada]\n[agents.Main]", "Main"),
        ("[agents.bob]\n[agents.ada]", "bob"),
        ("", None),
    ],
)
def test_the_default_agent_is_the_configured_agent_or_main_or_the_first_declared_agent(
    home: SettingsDirectory, text: str, answers: str | None
) -> None:
    assert home.load(text).default_agent == answers


@given(st.text())
def test_normalize_id_makes_a_valid_agent_name_of_any_text_and_is_idempotent(text: str) -> None:
    formed = normalize_id(text)
    assert validate_name(formed, what="an agent") == formed
    assert normalize_id(formed) == formed
    assert choose_default_agent(text, [formed]) == formed


# --- people, bindings and schedules ---


def test_declared_people_bindings_and_schedules_are_kept_as_tables(home: SettingsDirectory) -> None:
    text = """
    [people.maria]
    role = "member"
    [bindings.chat]
    agent = "ada"
    connector = "telegram"
    peer = "42"
    [bindings.rest]
    agent = "ada"
    connector = "telegram"
    [schedules.tick]
    agent = "ada"
    kind = "every"
    every_s = 60
    """
    staff = home.load(text).declarations
    assert staff.people == {"maria": {"role": Role.MEMBER}}
    assert staff.bindings["chat"] == {"agent": "ada", "connector": "telegram", "peer": "42"}
    assert staff.schedules == {"tick": {"agent": "ada", "kind": DeclaredScheduleKind.EVERY, "every_s": 60.0}}
