"""Which skills a run has. Pure, but for the last: what is set for a skill reaches the commands of its run alone."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from agents.skill_folders import here, house_root, write_skill

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

PLAIN = SkillSettings()
ALL = SkillSettings(trusted=(TrustedSkillSource.SERVER,))


@pytest.fixture
def skills(tmp_path: Path) -> tuple[Skill, ...]:
    for name in ("tides", "weather", "wind"):
        write_skill(tmp_path / "skills", name, description=f"About {name} & <more>.", body=f"How to look up {name}.")
    return find_skills([house_root(tmp_path / "skills")]).skills


def chosen(skills: tuple[Skill, ...], settings: SkillSettings, *, agent: str = "ada", subset=None) -> SkillSelection:
    stood = evaluate_skills(skills, {}, here(), settings=settings, agent=agent)
    return select_skills(stood, lists=skill_lists_for(settings, agent), subset=subset)


def names(choice: SkillSelection) -> list[str]:
    return [skill.name for skill in choice.skills]


@pytest.mark.parametrize(
    ("house", "own", "expected"),
    [
        ({}, None, ["tides", "weather", "wind"]),
        ({}, {}, ["tides", "weather", "wind"]),  # a list that is absent is everything
        ({"allow": ()}, None, []),  # one that is empty is nothing
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
def test_lists_say_which_skills_an_agent_has(skills, house, own, expected) -> None:
    agents = {} if own is None else {"ada": SkillLists(**own)}
    settings = SkillSettings(trusted=(TrustedSkillSource.SERVER,), agents=agents, **house)
    assert names(chosen(skills, settings)) == expected


def test_one_agents_lists_are_not_anothers(skills) -> None:
    settings = SkillSettings(trusted=(TrustedSkillSource.SERVER,), agents={"ada": SkillLists(allow=())})
    assert names(chosen(skills, settings, agent="bo")) == ["tides", "weather", "wind"]


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
def test_a_session_may_pick_some_of_them(skills, subset, expected, left_out) -> None:
    choice = chosen(skills, ALL, subset=parse_subset(subset))
    assert (names(choice), choice.left_out) == (expected, left_out)


def test_a_session_cannot_pick_what_its_agent_may_not_have(skills) -> None:
    settings = SkillSettings(trusted=(TrustedSkillSource.SERVER,), deny=("wind",))
    choice = chosen(skills, settings, subset=("wind", "tides"))
    assert (names(choice), choice.left_out) == (["tides"], ("wind",))


@pytest.mark.parametrize("value", ["wind", [1], {"wind": True}, ["x"] * 201])
def test_a_pick_that_is_no_list_of_names_is_refused(value: object) -> None:
    with pytest.raises(Invalid):
        parse_subset(value)


@pytest.mark.spec("A43")
def test_available_skills_are_named_with_their_path_and_inline_ones_are_told_in_full(skills) -> None:
    settings = SkillSettings(trusted=(TrustedSkillSource.SERVER,), available=("t*", "w*"), inline=("wind",))
    choice = chosen(skills, settings)
    assert ([s.name for s in choice.listed], [s.name for s in choice.inline]) == (["tides", "weather"], ["wind"])
    text = render_skills_section(choice)
    tides = skills[0]
    listed = (
        f"<name>tides</name><description>About tides &amp; &lt;more&gt;.</description><location>{tides.file}</location>"
    )
    assert listed in text
    assert "How to look up wind." in text and "How to look up tides." not in text
    assert text.count("<name>") == 2
    assert render_skills_section(chosen(skills, settings)) == text  # the same choice, the same bytes


def test_no_skills_are_not_worth_a_word(skills) -> None:
    assert render_skills_section(chosen(skills, SkillSettings(allow=()))) == ""


def test_a_long_skill_is_cut_visibly_and_cannot_end_its_own_frame(tmp_path: Path) -> None:
    write_skill(tmp_path, "long", body="</skill>" + "x" * INLINE_CHARS_MAX)
    found = find_skills([house_root(tmp_path)]).skills
    text = render_skills_section(chosen(found, SkillSettings(trusted=(TrustedSkillSource.SERVER,), inline=("*",))))
    assert "[truncated: 8 more characters in " in text and text.count("</skill>") == 1


def test_a_model_is_told_of_so_many_and_no_more(skills) -> None:
    many = tuple(skills[:1]) * (LISTED_SKILLS_MAX + 5)
    assert len(chosen(many, ALL).listed) == LISTED_SKILLS_MAX


def test_a_skill_for_people_is_not_told_to_models(tmp_path: Path) -> None:
    write_skill(tmp_path, "quiet", front="disable-model-invocation: true\n")
    assert names(chosen(find_skills([house_root(tmp_path)]).skills, ALL)) == []


def states(skills, pins, settings=PLAIN, **kw) -> list[SkillState]:
    return [each.state for each in evaluate_skills(skills, pins, here(**kw), settings=settings)]


def test_only_what_was_found_good_just_as_it_is_now_is_used(skills) -> None:
    tides, weather, _ = skills
    pins = {tides.key: tides.hash, weather.key: "0" * 64}
    stood = evaluate_skills(skills, pins, here(), settings=SkillSettings())
    assert [each.state for each in stood] == [SkillState.READY, SkillState.CHANGED, SkillState.NEW]
    assert names(select_skills(stood, lists=skill_lists_for(SkillSettings(), "ada"))) == ["tides"]
    assert states(skills, pins, SkillSettings(trusted=(TrustedSkillSource.EXTRA,)))[1:] == [
        SkillState.CHANGED,
        SkillState.NEW,
    ]
    assert states(skills, pins, ALL) == [SkillState.READY] * 3


def test_what_another_place_has_under_that_name_was_not_found_good(tmp_path: Path, skills) -> None:
    write_skill(tmp_path / "other", "tides")
    [theirs] = find_skills([SkillRoot(source=SkillSource.AGENT, path=tmp_path / "other", owner="ada")]).skills
    assert states([theirs], {skills[0].key: theirs.hash}) == [SkillState.NEW]
    assert states([theirs], {theirs.key: theirs.hash}) == [SkillState.READY]


def test_skills_of_a_plugin_are_as_good_as_it_is(tmp_path: Path) -> None:
    write_skill(tmp_path, "tides")
    brought = find_skills([SkillRoot(source=SkillSource.PLUGIN, path=tmp_path, owner="diary")]).skills
    assert states(brought, {}) == [SkillState.READY]
    assert states(brought, {}, SkillSettings(deny=("tides",))) == [SkillState.OFF]


@pytest.mark.spec("C96")
def test_gates_and_settings_say_why_a_skill_is_not_used(tmp_path: Path) -> None:
    write_skill(tmp_path, "keyed", front='requires: {"env": ["TIDE_KEY"]}\n')
    write_skill(tmp_path, "off")
    found = find_skills([house_root(tmp_path)]).skills
    settings = SkillSettings(trusted=(TrustedSkillSource.SERVER,), entries={"off": SkillEntry(enabled=False)})
    stood = evaluate_skills(found, {}, here(), settings=settings)
    assert [(each.state, each.because) for each in stood] == [
        (SkillState.UNFIT, "the environment variable TIDE_KEY is not set for it"),
        (SkillState.OFF, "it is disabled in the settings"),
    ]
    assert states(found, {}, settings, env="TIDE_KEY")[0] is SkillState.READY
    given = SkillEntry(env={"TIDE_KEY": VariableValue(value="x")})
    assert (
        states(found, {}, SkillSettings(trusted=(TrustedSkillSource.SERVER,), entries={"keyed": given}))[0]
        is SkillState.READY
    )


@pytest.mark.spec("C96")
def test_a_choice_once_taken_stays_as_it_was_and_the_next_run_takes_its_own(tmp_path: Path) -> None:
    write_skill(tmp_path, "tides", body="The old way.")
    before = chosen(
        find_skills([house_root(tmp_path)]).skills, SkillSettings(trusted=(TrustedSkillSource.SERVER,), inline=("*",))
    )
    text, version = render_skills_section(before), before.version
    write_skill(tmp_path, "tides", body="The new way.")
    assert (render_skills_section(before), before.version) == (text, version) and "The old way." in text
    after = chosen(
        find_skills([house_root(tmp_path)]).skills, SkillSettings(trusted=(TrustedSkillSource.SERVER,), inline=("*",))
    )
    assert "The new way." in render_skills_section(after) and after.version != version


# How operations are reached

TOOLS = {"session_list": "session", "session_show": "session", "agent_list": "agent", "config_show": "config"}


@pytest.fixture
def bundles(tmp_path: Path) -> tuple[Skill, ...]:
    root = tmp_path / "bundles"
    for noun in ("session", "agent"):
        folder = write_skill(root, f"retinue-{noun}", front=f"bundle: {noun}\n")
        (folder / f"retinue-{noun}-cli").write_text("#!/bin/sh\n")
        (folder / f"retinue-{noun}-cli").chmod(0o755)
    write_skill(root, "weather")
    return find_skills([house_root(root)]).skills


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
def test_exposure_says_which_tools_are_hidden_and_which_bundles_are_told_of(
    bundles, exposure, settings, hidden, listed
) -> None:
    lists = skill_lists_for(SkillSettings(**settings), "ada")
    exposed = select_exposure(exposure, TOOLS, bundles, lists)
    assert (set(exposed.hidden), set(exposed.bundles)) == (hidden, listed)


@pytest.mark.spec("A41")
def test_a_bundle_is_listed_only_where_it_is_exposed_and_other_skills_always(bundles) -> None:
    for exposure, expected in (
        (OperationExposure.TOOLS, ["weather"]),
        (OperationExposure.SKILLS, ["retinue-agent", "retinue-session", "weather"]),
    ):
        settings = SkillSettings(trusted=(TrustedSkillSource.SERVER,), exposure=exposure)
        lists = skill_lists_for(settings, "ada")
        exposed = select_exposure(lists.display_lists.exposure, TOOLS, bundles, lists)
        stood = evaluate_skills(bundles, {}, here(), settings=settings, agent="ada")
        assert names(select_skills(stood, lists=lists, bundles=exposed.bundles)) == expected


# What is set for a skill


async def environment_in_a_child(**variables: str) -> str:
    script = "import os; print(os.environ.get('TIDE_KEY'), os.environ.get('WIND_TOKEN'))"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, env=variables, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await child.communicate()
    return said.decode().strip()


@pytest.mark.spec("C96")
async def test_what_is_set_for_a_skill_reaches_the_commands_of_its_run_and_nothing_else(skills) -> None:
    settings = SkillSettings(
        trusted=(TrustedSkillSource.SERVER,),
        entries={
            "tides": SkillEntry(env={"TIDE_KEY": VariableValue(value="from tides")}),
            "wind": SkillEntry(env={"WIND_TOKEN": SecretReference(env="HOUSE_WIND")}),
        },
    )
    house = {"HOUSE_WIND": "a secret of wind"}
    before = dict(os.environ)
    tides = build_environment(chosen(skills, settings, subset=("tides",)), settings, house)
    both = build_environment(chosen(skills, settings), settings, house)
    none = build_environment(chosen(skills, settings, subset=("weather",)), settings, house)
    told = await asyncio.gather(
        environment_in_a_child(**tides.variables),
        environment_in_a_child(**both.variables),
        environment_in_a_child(**none.variables),
    )
    assert told == ["from tides None", "from tides a secret of wind", "None None"]
    assert dict(os.environ) == before
    assert "a secret of wind" not in repr(both)


def test_a_secret_that_is_missing_is_told_of_and_the_others_are_there(skills) -> None:
    entry = SkillEntry(
        env={"A_TOKEN": SecretReference(env="NOT_THERE"), "B": VariableValue(env="THERE"), "C": VariableValue(value="")}
    )
    settings = SkillSettings(trusted=(TrustedSkillSource.SERVER,), entries={"tides": entry})
    scoped = build_environment(chosen(skills, settings), settings, {"THERE": "yes"})
    assert {name: scoped.variables.get(name) for name in "BC"} == {"B": "yes", "C": ""}
    assert list(scoped.missing) == ["A_TOKEN"] and "NOT_THERE" in scoped.missing["A_TOKEN"]
