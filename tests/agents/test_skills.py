"""A SKILL.md: what can be said in it, and what is refused."""

from __future__ import annotations

import pytest
from agents.skill_folders import here
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


def skill(front: str, body: str = "Do it.") -> str:
    return f"---\nname: weather\ndescription: Looks it up.\n{front}\n---\n{body}"


def gates(front: str) -> HostRequirements:
    return parse_skill(skill(front), folder="weather").requirements


def test_a_skill_says_its_name_what_it_is_for_and_how_it_is_done() -> None:
    found = parse_skill(skill("", "# Weather\n\nLook out.\n---\nstill its words\n"), folder="weather")
    assert (found.name, found.description) == ("weather", "Looks it up.")
    assert found.body == "# Weather\n\nLook out.\n---\nstill its words"
    assert found.requirements == HostRequirements() and found.is_for_models and not found.bundle


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("no front matter", "must start with front matter"),
        ("---\nname: weather\ndescription: x\n", "does not end"),
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
def test_what_does_not_fit_is_refused_with_the_reason(text: str, because: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_skill(text, folder="weather")
    assert because in refused.value.because


def test_the_bounds_themselves_still_fit() -> None:
    name = "w" * NAME_LENGTH_MAX
    text = f"---\nname: {name}\ndescription: {'x' * DESCRIPTION_LENGTH_MAX}\n---\n"
    assert parse_skill(text, folder=name).name == name


PLAIN = """os: linux
requires:
  bins: [curl, jq]
  anyBins:
    - rg
    - grep
  env: KEY  # its own
  config: web.on"""
ON_ONE_LINE = (
    'metadata: {"openclaw": {"os": ["linux"], "requires": {"bins": ["curl", "jq"], "anyBins": ["rg", "grep"],'
    ' "env": ["KEY"], "config": ["web.on"]}}}'
)
ON_SEVERAL = """metadata:
  {
    "clawdbot":
      {
        "os": ["linux"],
        "requires": { "bins": ["curl", "jq"], "anyBins": ["rg", "grep"], "env": ["KEY"], "config": ["web.on"], },
      },
  }"""
INDENTED = """metadata:
  retinue:
    os:
    - Linux
    requires:
      bins: ['curl', "jq"]
      anyBins: [rg, grep]
      env: [KEY]
      config: [web.on]"""


@pytest.mark.parametrize("front", [PLAIN, ON_ONE_LINE, ON_SEVERAL, INDENTED])
def test_gates_are_read_however_houses_write_them(front: str) -> None:
    assert gates(front) == HostRequirements(
        os=("linux",), bins=("curl", "jq"), any_bins=("rg", "grep"), env=("KEY",), config=("web.on",)
    )


def test_texts_over_several_lines_and_in_quotes() -> None:
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
    said, body = split_front_matter(text)
    assert said == {
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
        ("os: [linux, macos]", here(), here(os="win32")),
        ('requires: {"bins": ["curl", "jq"]}', here(bins="curl jq"), here(bins="curl")),
        ('requires: {"anyBins": ["rg", "grep"]}', here(bins="grep"), here(bins="curl")),
        ('requires: {"env": ["KEY"]}', here(env="KEY"), here()),
        ('requires: {"config": ["web.on"]}', here(config="web.on"), here(config="web")),
    ],
)
def test_a_gate_is_open_where_all_it_asks_for_is_there_and_shut_where_not(front: str, met, missing) -> None:
    assert unmet_requirement(gates(front), met) == ""
    assert unmet_requirement(gates(front), missing) != ""
    assert unmet_requirement(gates(f"{front}\nalways: true"), missing) == ""


@given(st.text(max_size=300))
def test_whatever_stands_there_is_a_skill_or_refused_and_nothing_else(text: str) -> None:
    for whole in (text, f"---\n{text}\n---\n", f"---\nname: weather\ndescription: x\n{text}\n---\n"):
        try:
            found = parse_skill(whole, folder="weather")
        except Invalid:
            continue
        assert found.name == "weather" and found.description
