"""Slash commands of skills: their names, and which skills have one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from agents.skill_folders import host_facts, instance_skill_root, write_skill

from retinue.agents.skill_commands import COMMANDS_MAX, build_skill_commands
from retinue.agents.skill_discovery import find_skills
from retinue.agents.skill_selection import EvaluatedSkill, evaluate_skills, select_skills, skill_lists_for
from retinue.agents.skills import parse_skill
from retinue.config.skills import SkillSettings, TrustedSkillSource
from retinue.domain.errors import Invalid
from retinue.domain.slash_command import COMMAND_LENGTH_MAX, COMMANDS_BY_WORD

SETTINGS = SkillSettings(trusted=(TrustedSkillSource.INSTANCE,))


def evaluate_skills_in(root: Path) -> tuple[EvaluatedSkill, ...]:
    found = find_skills([instance_skill_root(root)])
    return evaluate_skills(found.skills, {}, host_facts(), settings=SETTINGS)


@pytest.mark.spec("C33")
def test_skill_command_names_are_valid_short_and_unique(tmp_path: Path) -> None:
    long = "a-skill-with-a-name-that-is-much-too-long"
    for name in ("weather", "status", "2nd-opinion", "one-two", long, f"{long}-2", f"{long}-3"):
        write_skill(tmp_path, name)
    named = {command.skill: command.name for command in build_skill_commands(evaluate_skills_in(tmp_path))}
    assert named["weather"] == "weather" and named["one-two"] == "one_two"
    assert named["status"] == "status_2", "the server has a command of that name"
    assert named["2nd-opinion"] == "skill_2nd_opinion", "a command begins with a letter"
    assert named[long] == "a_skill_with_a_name_that_is_much"
    assert named[f"{long}-2"] == "a_skill_with_a_name_that_is_mu_2"
    assert named[f"{long}-3"] == "a_skill_with_a_name_that_is_mu_3"
    assert len(set(named.values())) == 7 and not set(named.values()) & set(COMMANDS_BY_WORD)
    assert all(re.fullmatch(r"[a-z0-9_]+", name) and len(name) <= COMMAND_LENGTH_MAX for name in named.values())


@pytest.mark.spec("C33")
def test_skill_commands_are_built_for_ready_user_invocable_skills(tmp_path: Path) -> None:
    write_skill(tmp_path, "weather")
    write_skill(tmp_path, "inner", front="user-invocable: false\n")
    write_skill(tmp_path, "hidden", front="disable-model-invocation: true\n")
    write_skill(tmp_path, "unfit", front="requires: {bins: [nothing-of-that-name]}\n".replace("bins", '"bins"'))
    names = [command.skill for command in build_skill_commands(evaluate_skills_in(tmp_path))]
    assert names == ["hidden", "weather"]
    assert [c.skill for c in build_skill_commands(evaluate_skills_in(tmp_path), subset=["weather"])] == ["weather"]
    new = evaluate_skills(
        find_skills([instance_skill_root(tmp_path)]).skills, {}, host_facts(), settings=SkillSettings()
    )
    assert build_skill_commands(new) == (), "they are not approved yet"


def test_the_number_of_skill_commands_is_limited(tmp_path: Path) -> None:
    for number in range(COMMANDS_MAX + 5):
        write_skill(tmp_path, f"skill-{number}")
    assert len(build_skill_commands(evaluate_skills_in(tmp_path))) == COMMANDS_MAX


def test_a_skill_requested_by_its_command_is_inline_even_if_model_invocation_is_disabled(tmp_path: Path) -> None:
    write_skill(tmp_path, "hidden", front="disable-model-invocation: true\n")
    write_skill(tmp_path, "weather")
    lists = skill_lists_for(SETTINGS, "ada")
    assert [skill.name for skill in select_skills(evaluate_skills_in(tmp_path), lists=lists).skills] == ["weather"]
    called = select_skills(evaluate_skills_in(tmp_path), lists=lists, requested_skill="hidden")
    assert [skill.name for skill in called.inline] == ["hidden"]
    assert [skill.name for skill in called.listed] == ["weather"]


@pytest.mark.spec("C33")
def test_a_skill_command_can_dispatch_to_a_tool(tmp_path: Path) -> None:
    front = "command-dispatch: tool\ncommand-tool: append_line\ncommand-argument: text\n"
    write_skill(tmp_path, "note", front=front)
    write_skill(tmp_path, "shell", front="command-dispatch: tool\ncommand-tool: exec\ncommand-arg-mode: raw\n")
    note, shell = build_skill_commands(evaluate_skills_in(tmp_path))
    assert (note.tool, note.argument) == ("append_line", "text")
    assert (shell.tool, shell.argument) == ("exec", "command")


@pytest.mark.parametrize(
    "front",
    [
        "command-dispatch: tool",
        "command-tool: exec",
        "command-dispatch: shell\ncommand-tool: exec",
        "command-dispatch: tool\ncommand-tool: two words",
        "command-dispatch: tool\ncommand-tool: exec\ncommand-arg-mode: parsed",
        "user-invocable: perhaps",
    ],
)
def test_a_skill_with_an_incomplete_command_dispatch_is_refused(front: str) -> None:
    with pytest.raises(Invalid, match="invalid skill"):
        parse_skill(f"---\nname: note\ndescription: Notes.\n{front}\n---\nDo it.\n", folder="note")
