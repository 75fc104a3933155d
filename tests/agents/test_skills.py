"""SKILL.md: what it can contain, and what is refused."""

from __future__ import annotations

import pytest
from agents.skill_folders import host_facts
from hypothesis import given
from hypothesis import strategies as st

from retinue.agents.skill_front_matter import split_front_matter
from retinue.agents.skills import (
    DESCRIPTION_LENGTH_MAX,
    NAME_LENGTH_MAX,
    HostRequirements,
    parse_skill,
    unmet_requirement,
)
from retinue.domain.errors import Invalid


def skill_text(front: str, body: str = "Do it.") -> str:
    return f"---\nname: weather\ndescription: Looks it up.\n{front}\n---\n{body}"


def parse_requirements(front: str) -> HostRequirements:
    return parse_skill(skill_text(front), folder="weather").requirements


def test_a_skill_file_is_parsed_into_name_description_and_body() -> None:
    found = parse_skill(skill_text("", "# Weather\n\nLook out.\n---\nstill its text\n"), folder="weather")
    assert (found.name, found.description) == ("weather", "Looks it up.")
    assert found.body == "# Weather\n\nLook out.\n---\nstill its text"
    assert found.requirements == HostRequirements() and found.is_for_models and not found.bundle


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("no front matter", "must start with front matter"),
        ("---\nname: weather\ndescription: x\n", "no closing line ---"),
        ("---\nname: Weather\ndescription: x\n---\n", "lowercase letters"),
        ("---\nname: we--ather\ndescription: x\n---\n", "lowercase letters"),
        ("---\nname: ../weather\ndescription: x\n---\n", "lowercase letters"),
        (f"---\nname: {'w' * (NAME_LENGTH_MAX + 1)}\ndescription: x\n---\n", "lowercase letters"),
        ("---\nname: other\ndescription: x\n---\n", "the name of its folder"),
        ("---\nname: weather\n---\n", "1 to 1024"),
        ("---\nname: weather\ndescription: '  '\n---\n", "1 to 1024"),
        (f"---\nname: weather\ndescription: {'x' * (DESCRIPTION_LENGTH_MAX + 1)}\n---\n", "1 to 1024"),
        ("---\nname: weather\ndescription: [a, b]\n---\n", "1 to 1024"),
        ("---\nname: weather\nname: weather\ndescription: x\n---\n", "twice"),
        ("---\nname: weather\ndescription: x\nalways: perhaps\n---\n", "true or false"),
        ('---\nname: weather\ndescription: x\nrequires: {"bin": ["jq"]}\n---\n', "bins, anyBins"),
        ('---\nname: weather\ndescription: x\nrequires: {"bins": ["../jq"]}\n---\n', "without spaces"),
        ("---\nname: weather\ndescription: x\nos: {}\n---\n", "a list of names"),
        ("---\nname: weather\ndescription: &anchor x\n---\n", "in quotes"),
        ('---\nname: weather\ndescription: "half\n---\n', "double quotes"),
        ("---\nname: weather\n\tdescription: x\n---\n", "tabs"),
        ("---\nname: weather\n  description: x\n---\n", "key: value"),
        ("---\nname: weather\ndescription: x\nmore\n---\n", "key: value"),
    ],
)
def test_an_invalid_skill_file_is_refused_with_the_reason(text: str, because: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_skill(text, folder="weather")
    assert because in refused.value.because


def test_a_skill_name_and_description_at_the_length_limits_are_accepted() -> None:
    name = "w" * NAME_LENGTH_MAX
    text = f"---\nname: {name}\ndescription: {'x' * DESCRIPTION_LENGTH_MAX}\n---\n"
    assert parse_skill(text, folder=name).name == name


BLOCK_FRONT_MATTER = """os: linux
requires:
  bins: [curl, jq]
  anyBins:
    - rg
    - grep
  env: KEY  # its own
  config: web.on"""
ONE_LINE_FRONT_MATTER = (
    'metadata: {"openclaw": {"os": ["linux"], "requires": {"bins": ["curl", "jq"], "anyBins": ["rg", "grep"],'
    ' "env": ["KEY"], "config": ["web.on"]}}}'
)
MULTI_LINE_FRONT_MATTER = """metadata:
  {
    "clawdbot":
      {
        "os": ["linux"],
        "requires": { "bins": ["curl", "jq"], "anyBins": ["rg", "grep"], "env": ["KEY"], "config": ["web.on"], },
      },
  }"""
INDENTED_FRONT_MATTER = """metadata:
  retinue:
    os:
    - Linux
    requires:
      bins: ['curl', "jq"]
      anyBins: [rg, grep]
      env: [KEY]
      config: [web.on]"""


@pytest.mark.parametrize(
    "front", [BLOCK_FRONT_MATTER, ONE_LINE_FRONT_MATTER, MULTI_LINE_FRONT_MATTER, INDENTED_FRONT_MATTER]
)
def test_skill_requirements_are_read_in_every_supported_notation(front: str) -> None:
    assert parse_requirements(front) == HostRequirements(
        os=("linux",), bins=("curl", "jq"), any_bins=("rg", "grep"), env=("KEY",), config=("web.on",)
    )


def test_skill_front_matter_texts_can_be_multi_line_and_quoted() -> None:
    text = """---
a: >
  one
  two

  three
b: |
  one
    two
c: 'it''s'
d: "a \\"b\\""
e: a: b
f: ~
g: # nothing
h: true
---
words"""
    front_matter, body = split_front_matter(text)
    assert front_matter == {
        "a": "one two\nthree",
        "b": "one\n  two",
        "c": "it's",
        "d": 'a "b"',
        "e": "a: b",
        "f": "",
        "g": "",
        "h": True,
    }
    assert body == "words"


@pytest.mark.spec("C96")
@pytest.mark.parametrize(
    ("front", "met", "missing"),
    [
        ("os: [linux, macos]", host_facts(), host_facts(os="win32")),
        ('requires: {"bins": ["curl", "jq"]}', host_facts(bins="curl jq"), host_facts(bins="curl")),
        ('requires: {"anyBins": ["rg", "grep"]}', host_facts(bins="grep"), host_facts(bins="curl")),
        ('requires: {"env": ["KEY"]}', host_facts(env="KEY"), host_facts()),
        ('requires: {"config": ["web.on"]}', host_facts(config="web.on"), host_facts(config="web")),
    ],
)
def test_a_skill_requirement_is_met_only_if_the_named_programs_variables_or_settings_exist(
    front: str, met, missing
) -> None:
    assert unmet_requirement(parse_requirements(front), met) == ""
    assert unmet_requirement(parse_requirements(front), missing) != ""
    assert unmet_requirement(parse_requirements(f"{front}\nalways: true"), missing) == ""


@given(st.text(max_size=300))
def test_any_text_is_parsed_as_a_skill_or_refused(text: str) -> None:
    for whole in (text, f"---\n{text}\n---\n", f"---\nname: weather\ndescription: x\n{text}\n---\n"):
        try:
            found = parse_skill(whole, folder="weather")
        except Invalid:
            continue
        assert found.name == "weather" and found.description
