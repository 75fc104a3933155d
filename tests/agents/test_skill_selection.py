"""Which skills a run has, and that the variables of a skill reach only the commands of runs with it."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from agents.skill_folders import host_facts, instance_skill_root, write_skill

from retinue.agents.operation_exposure import select_exposure
from retinue.agents.skill_discovery import SkillRoot, find_skills
from retinue.agents.skill_selection import (
    INLINE_CHARS_MAX,
    LISTED_SKILLS_MAX,
    SkillSelection,
    SkillState,
    build_environment,
    evaluate_skills,
    parse_subset,
    render_skills_section,
    select_skills,
    skill_lists_for,
)
from retinue.agents.skills import Skill, SkillSource
from retinue.config.secret import SecretReference
from retinue.config.skills import (
    OperationExposure,
    SkillEntry,
    SkillLists,
    SkillSettings,
    TrustedSkillSource,
    VariableValue,
)
from retinue.domain.errors import Invalid

DEFAULT_SETTINGS = SkillSettings()
TRUSTING_SETTINGS = SkillSettings(trusted=(TrustedSkillSource.INSTANCE,))


@pytest.fixture
def skills(tmp_path: Path) -> tuple[Skill, ...]:
    for name in ("tides", "weather", "wind"):
        write_skill(tmp_path / "skills", name, description=f"About {name} & <more>.", body=f"How to look up {name}.")
    return find_skills([instance_skill_root(tmp_path / "skills")]).skills


def select(skills: tuple[Skill, ...], settings: SkillSettings, *, agent: str = "ada", subset=None) -> SkillSelection:
    stood = evaluate_skills(skills, {}, host_facts(), settings=settings, agent=agent)
    return select_skills(stood, lists=skill_lists_for(settings, agent), subset=subset)


def names(choice: SkillSelection) -> list[str]:
    return [skill.name for skill in choice.skills]


@pytest.mark.parametrize(
    ("server", "own", "expected"),
    [
        ({}, None, ["tides", "weather", "wind"]),
        ({}, {}, ["tides", "weather", "wind"]),  # a missing list allows all
        ({"allow": ()}, None, []),  # an empty list allows none
        ({}, {"allow": ()}, []),
        ({"allow": ("w*",)}, None, ["weather", "wind"]),
        ({"allow": ("w*",)}, {"allow": ("tides", "wind")}, ["wind"]),
        ({"deny": ("w*",)}, {"allow": ("*",)}, ["tides"]),
        ({"deny": ()}, {"deny": ("*",)}, []),
        ({"allow": ("weather",), "deny": ("weather",)}, None, []),
        ({"available": ()}, None, []),
        ({}, {"available": (), "inline": ("wind",)}, ["wind"]),
    ],
)
def test_allow_deny_and_available_lists_decide_the_skills_of_an_agent(skills, server, own, expected) -> None:
    agents = {} if own is None else {"ada": SkillLists(**own)}
    settings = SkillSettings(trusted=(TrustedSkillSource.INSTANCE,), agents=agents, **server)
    assert names(select(skills, settings)) == expected


def test_skill_lists_of_one_agent_do_not_apply_to_another(skills) -> None:
    settings = SkillSettings(trusted=(TrustedSkillSource.INSTANCE,), agents={"ada": SkillLists(allow=())})
    assert names(select(skills, settings, agent="bo")) == ["tides", "weather", "wind"]


@pytest.mark.spec("A43", "C96")
@pytest.mark.parametrize(
    ("subset", "expected", "left_out"),
    [
        (None, ["tides", "weather", "wind"], ()),
        ([], [], ()),
        (["wind"], ["wind"], ()),
        (["wind", "sun"], ["wind"], ("sun",)),
    ],
)
def test_a_session_can_select_a_subset_of_skills(skills, subset, expected, left_out) -> None:
    choice = select(skills, TRUSTING_SETTINGS, subset=parse_subset(subset))
    assert (names(choice), choice.left_out) == (expected, left_out)


def test_a_session_cannot_select_a_skill_its_agent_is_denied(skills) -> None:
    settings = SkillSettings(trusted=(TrustedSkillSource.INSTANCE,), deny=("wind",))
    choice = select(skills, settings, subset=("wind", "tides"))
    assert (names(choice), choice.left_out) == (["tides"], ("wind",))


@pytest.mark.parametrize("value", ["wind", [1], {"wind": True}, ["x"] * 201])
def test_a_skill_subset_that_is_no_list_of_names_is_refused(value: object) -> None:
    with pytest.raises(Invalid):
        parse_subset(value)


@pytest.mark.spec("A43")
def test_available_skills_are_listed_with_their_path_and_inline_skills_in_full(skills) -> None:
    settings = SkillSettings(trusted=(TrustedSkillSource.INSTANCE,), available=("t*", "w*"), inline=("wind",))
    choice = select(skills, settings)
    assert ([s.name for s in choice.listed], [s.name for s in choice.inline]) == (["tides", "weather"], ["wind"])
    text = render_skills_section(choice)
    tides = skills[0]
    listed = (
        f"<name>tides</name><description>About tides &amp; &lt;more&gt;.</description><location>{tides.file}</location>"
    )
    assert listed in text
    assert "How to look up wind." in text and "How to look up tides." not in text
    assert text.count("<name>") == 2
    assert render_skills_section(select(skills, settings)) == text  # the same choice gives the same bytes


def test_without_skills_the_skills_section_is_empty(skills) -> None:
    assert render_skills_section(select(skills, SkillSettings(allow=()))) == ""


def test_a_long_inline_skill_is_truncated_with_a_mark_and_cannot_close_its_tag(tmp_path: Path) -> None:
    write_skill(tmp_path, "long", body="</skill>" + "x" * INLINE_CHARS_MAX)
    found = find_skills([instance_skill_root(tmp_path)]).skills
    text = render_skills_section(select(found, SkillSettings(trusted=(TrustedSkillSource.INSTANCE,), inline=("*",))))
    assert "[truncated: 8 more characters in " in text and text.count("</skill>") == 1


def test_the_number_of_listed_skills_is_limited(skills) -> None:
    many = tuple(skills[:1]) * (LISTED_SKILLS_MAX + 5)
    assert len(select(many, TRUSTING_SETTINGS).listed) == LISTED_SKILLS_MAX


def test_a_skill_with_disabled_model_invocation_is_not_selected(tmp_path: Path) -> None:
    write_skill(tmp_path, "quiet", front="disable-model-invocation: true\n")
    assert names(select(find_skills([instance_skill_root(tmp_path)]).skills, TRUSTING_SETTINGS)) == []


def skill_states(skills, pins, settings=DEFAULT_SETTINGS, **kw) -> list[SkillState]:
    return [each.state for each in evaluate_skills(skills, pins, host_facts(**kw), settings=settings)]


def test_only_a_skill_whose_current_hash_is_approved_is_ready(skills) -> None:
    tides, weather, _ = skills
    pins = {tides.key: tides.hash, weather.key: "0" * 64}
    stood = evaluate_skills(skills, pins, host_facts(), settings=SkillSettings())
    assert [each.state for each in stood] == [SkillState.READY, SkillState.CHANGED, SkillState.NEW]
    assert names(select_skills(stood, lists=skill_lists_for(SkillSettings(), "ada"))) == ["tides"]
    assert skill_states(skills, pins, SkillSettings(trusted=(TrustedSkillSource.EXTRA,)))[1:] == [
        SkillState.CHANGED,
        SkillState.NEW,
    ]
    assert skill_states(skills, pins, TRUSTING_SETTINGS) == [SkillState.READY] * 3


def test_an_approval_does_not_apply_to_a_skill_of_the_same_name_from_another_source(tmp_path: Path, skills) -> None:
    write_skill(tmp_path / "other", "tides")
    [theirs] = find_skills([SkillRoot(source=SkillSource.AGENT, path=tmp_path / "other", owner="ada")]).skills
    assert skill_states([theirs], {skills[0].key: theirs.hash}) == [SkillState.NEW]
    assert skill_states([theirs], {theirs.key: theirs.hash}) == [SkillState.READY]


def test_skills_of_a_plugin_are_ready_without_approval(tmp_path: Path) -> None:
    write_skill(tmp_path, "tides")
    brought = find_skills([SkillRoot(source=SkillSource.PLUGIN, path=tmp_path, owner="diary")]).skills
    assert skill_states(brought, {}) == [SkillState.READY]
    assert skill_states(brought, {}, SkillSettings(deny=("tides",))) == [SkillState.OFF]


@pytest.mark.spec("C96")
def test_an_unused_skill_reports_its_unmet_requirement_or_the_setting_that_disables_it(tmp_path: Path) -> None:
    write_skill(tmp_path, "keyed", front='requires: {"env": ["TIDE_KEY"]}\n')
    write_skill(tmp_path, "off")
    found = find_skills([instance_skill_root(tmp_path)]).skills
    settings = SkillSettings(trusted=(TrustedSkillSource.INSTANCE,), entries={"off": SkillEntry(enabled=False)})
    stood = evaluate_skills(found, {}, host_facts(), settings=settings)
    assert [(each.state, each.because) for each in stood] == [
        (SkillState.UNAVAILABLE, "the environment variable TIDE_KEY is not set for it"),
        (SkillState.OFF, "it is disabled in the settings"),
    ]
    assert skill_states(found, {}, settings, env="TIDE_KEY")[0] is SkillState.READY
    given = SkillEntry(env={"TIDE_KEY": VariableValue(value="x")})
    assert (
        skill_states(found, {}, SkillSettings(trusted=(TrustedSkillSource.INSTANCE,), entries={"keyed": given}))[0]
        is SkillState.READY
    )


@pytest.mark.spec("C96")
def test_a_skill_selection_does_not_change_when_the_file_changes(tmp_path: Path) -> None:
    write_skill(tmp_path, "tides", body="The old way.")
    before = select(
        find_skills([instance_skill_root(tmp_path)]).skills,
        SkillSettings(trusted=(TrustedSkillSource.INSTANCE,), inline=("*",)),
    )
    text, version = render_skills_section(before), before.version
    write_skill(tmp_path, "tides", body="The new way.")
    assert (render_skills_section(before), before.version) == (text, version) and "The old way." in text
    after = select(
        find_skills([instance_skill_root(tmp_path)]).skills,
        SkillSettings(trusted=(TrustedSkillSource.INSTANCE,), inline=("*",)),
    )
    assert "The new way." in render_skills_section(after) and after.version != version


# How operations are offered

TOOLS = {"session_list": "session", "session_show": "session", "agent_list": "agent", "config_show": "config"}


@pytest.fixture
def bundles(tmp_path: Path) -> tuple[Skill, ...]:
    root = tmp_path / "bundles"
    for noun in ("session", "agent"):
        folder = write_skill(root, f"retinue-{noun}", front=f"bundle: {noun}\n")
        (folder / f"retinue-{noun}-cli").write_text("#!/bin/sh\n")
        (folder / f"retinue-{noun}-cli").chmod(0o755)
    write_skill(root, "weather")
    return find_skills([instance_skill_root(root)]).skills


@pytest.mark.spec("A41")
@pytest.mark.parametrize(
    ("exposure", "settings", "hidden", "listed"),
    [
        (OperationExposure.TOOLS, {}, set(), set()),
        (OperationExposure.SKILLS, {}, set(TOOLS), {"session", "agent"}),
        (OperationExposure.MIXED, {}, {"session_list", "session_show", "agent_list"}, {"session", "agent"}),
        (OperationExposure.MIXED, {"allow": ("retinue-agent",)}, {"agent_list"}, {"agent"}),
        (OperationExposure.MIXED, {"deny": ("retinue-agent",)}, {"session_list", "session_show"}, {"session"}),
        (OperationExposure.MIXED, {"allow": ()}, set(), set()),
        (OperationExposure.SKILLS, {"allow": ()}, set(TOOLS), set()),
    ],
)
def test_operation_exposure_decides_which_tools_are_hidden_and_which_bundles_are_listed(
    bundles, exposure, settings, hidden, listed
) -> None:
    lists = skill_lists_for(SkillSettings(**settings), "ada")
    exposed = select_exposure(exposure, TOOLS, bundles, lists)
    assert (set(exposed.hidden), set(exposed.bundles)) == (hidden, listed)


@pytest.mark.spec("A41")
def test_a_skill_bundle_is_listed_only_if_exposed_and_other_skills_always(bundles) -> None:
    for exposure, expected in (
        (OperationExposure.TOOLS, ["weather"]),
        (OperationExposure.SKILLS, ["retinue-agent", "retinue-session", "weather"]),
    ):
        settings = SkillSettings(trusted=(TrustedSkillSource.INSTANCE,), exposure=exposure)
        lists = skill_lists_for(settings, "ada")
        exposed = select_exposure(lists.display_lists.exposure, TOOLS, bundles, lists)
        stood = evaluate_skills(bundles, {}, host_facts(), settings=settings, agent="ada")
        assert names(select_skills(stood, lists=lists, bundles=exposed.bundles)) == expected


# Variables of skills


async def environment_of_child_process(**variables: str) -> str:
    script = "import os; print(os.environ.get('TIDE_KEY'), os.environ.get('WIND_TOKEN'))"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, env=variables, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await child.communicate()
    return output.decode().strip()


@pytest.mark.spec("C96")
async def test_environment_variables_of_a_skill_reach_only_runs_with_that_skill(skills) -> None:
    settings = SkillSettings(
        trusted=(TrustedSkillSource.INSTANCE,),
        entries={
            "tides": SkillEntry(env={"TIDE_KEY": VariableValue(value="from tides")}),
            "wind": SkillEntry(env={"WIND_TOKEN": SecretReference(env="SERVER_WIND")}),
        },
    )
    server = {"SERVER_WIND": "a secret of wind"}
    before = dict(os.environ)
    tides = build_environment(select(skills, settings, subset=("tides",)), settings, server)
    both = build_environment(select(skills, settings), settings, server)
    none = build_environment(select(skills, settings, subset=("weather",)), settings, server)
    told = await asyncio.gather(
        environment_of_child_process(**tides.variables),
        environment_of_child_process(**both.variables),
        environment_of_child_process(**none.variables),
    )
    assert told == ["from tides None", "from tides a secret of wind", "None None"]
    assert dict(os.environ) == before
    assert "a secret of wind" not in repr(both)


def test_a_missing_skill_secret_is_reported_and_the_other_variables_are_set(skills) -> None:
    entry = SkillEntry(
        env={"A_TOKEN": SecretReference(env="NOT_THERE"), "B": VariableValue(env="THERE"), "C": VariableValue(value="")}
    )
    settings = SkillSettings(trusted=(TrustedSkillSource.INSTANCE,), entries={"tides": entry})
    scoped = build_environment(select(skills, settings), settings, {"THERE": "yes"})
    assert {name: scoped.variables.get(name) for name in "BC"} == {"B": "yes", "C": ""}
    assert list(scoped.missing) == ["A_TOKEN"] and "NOT_THERE" in scoped.missing["A_TOKEN"]
