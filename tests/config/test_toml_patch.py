"""Changes to the text of a settings file: comments and order stay, and nothing but the change is changed."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

import pytest
import tomlkit
from hypothesis import given
from hypothesis import strategies as st

from retinue.config import hash_settings_text
from retinue.config.toml_patch import patch_settings_text
from retinue.domain.errors import Conflict, Invalid, RetinueError

TEXT = """\
# My house.
config_version = 2  # two

# What people see.
[house]
zone = "UTC"  # the wall clock
drain_s = 5

[house.listen]  # the door
port = 7000

# The staff.

# Ada came first.
[agents.ada]
model = "guide"
tools = { allow = ["a"], deny = [] }  # careful

[[rooms]]
id = "red"
size = 1  # small

# The large one.
[[rooms]]
id = "blue"
# The end.
"""


def patched(text: str, changes: dict[str, Any], validate: Callable[[str], object] = tomllib.loads) -> str:
    return patch_settings_text(text, changes, expected_hash=hash_settings_text(text), validate=validate)


def test_a_change_touches_its_own_line_alone() -> None:
    result = patched(TEXT, {"house": {"zone": "Europe/Berlin"}})
    assert result == TEXT.replace('"UTC"', '"Europe/Berlin"')


def test_a_new_key_comes_after_the_keys_of_its_table_and_above_the_comments_of_the_next() -> None:
    result = patched(TEXT, {"house": {"listen": {"host": "::1"}}})
    assert result == TEXT.replace("port = 7000\n", 'port = 7000\nhost = "::1"\n')


def test_a_new_table_comes_after_its_sisters() -> None:
    result = patched(TEXT, {"house": {"logs": {"level": "debug"}}, "agents": {"bob": {"model": "m"}}})
    expected = TEXT.replace("port = 7000\n", 'port = 7000\n\n[house.logs]\nlevel = "debug"\n')
    assert result == expected.replace("# careful\n", '# careful\n\n[agents.bob]\nmodel = "m"\n')


def test_a_key_at_the_top_stays_above_the_tables() -> None:
    result = patched(TEXT, {"include": ["a.toml"]})
    assert result == TEXT.replace("# two\n", '# two\ninclude = ["a.toml"]\n')


def test_none_takes_out_a_key_or_a_table_and_leaves_the_comments_of_others() -> None:
    result = patched(TEXT, {"house": {"drain_s": None, "listen": None}, "nobody": None})
    assert result == TEXT.replace("drain_s = 5\n", "").replace("\n[house.listen]  # the door\nport = 7000\n", "")


def test_a_table_takes_its_own_comment_along_and_leaves_those_that_stand_apart() -> None:
    result = patched(TEXT, {"agents": {"ada": None}})
    assert "# The staff.\n\n[[rooms]]" in result and "# Ada came first." not in result
    assert patched("# My house.\n[house]\nzone = 'UTC'\n", {"house": None}) == "# My house.\n"


def test_the_last_of_a_section_can_be_taken_out() -> None:
    assert "agents" not in tomllib.loads(patched(TEXT, {"agents": {"ada": None}}))


@pytest.mark.spec("C3.arrays")
def test_tables_in_an_array_are_merged_by_their_id_and_others_added() -> None:
    result = patched(TEXT, {"rooms": [{"id": "blue", "size": 9}, {"id": "green"}]})
    assert tomllib.loads(result)["rooms"] == [{"id": "red", "size": 1}, {"id": "blue", "size": 9}, {"id": "green"}]
    assert "size = 1  # small" in result and "# The large one." in result


def test_tables_in_an_array_are_merged_by_name_where_they_have_no_id() -> None:
    text = "rooms = [\n  { name = 'a', x = 1 }, # first\n  { name = 'b' },\n]\n"
    result = patched(text, {"rooms": [{"name": "a", "y": 2}, {"name": "c"}]})
    assert tomllib.loads(result)["rooms"] == [{"name": "a", "x": 1, "y": 2}, {"name": "b"}, {"name": "c"}]
    assert "# first" in result


@pytest.mark.parametrize("given_", [[{"id": "a"}, {"x": 1}], [{"id": "a"}, {"id": "a"}], [1], []])
def test_an_array_whose_tables_cannot_be_told_apart_is_replaced_whole(given_: list[object]) -> None:
    assert tomllib.loads(patched(TEXT, {"rooms": given_})).get("rooms", []) == given_


def test_one_is_not_true() -> None:
    assert patched("a = 1 # x\n", {"a": True}) == "a = true # x\n"


def test_an_empty_file_takes_a_change() -> None:
    assert tomllib.loads(patched("", {"house": {"listen": {"port": 1}}})) == {"house": {"listen": {"port": 1}}}


def test_a_change_made_for_another_text_is_refused() -> None:
    with pytest.raises(Conflict) as refused:
        patch_settings_text(
            TEXT + "#", {"house": {"zone": "UTC"}}, expected_hash=hash_settings_text(TEXT), validate=tomllib.loads
        )
    assert refused.value.code == "config.changed"


def test_what_is_not_accepted_is_not_given_back() -> None:
    def refuse(text: str) -> None:
        assert "drain_s = 6" in text
        raise Invalid("no")

    with pytest.raises(Invalid, match="no"):
        patched(TEXT, {"house": {"drain_s": 6}}, refuse)


@pytest.mark.parametrize("value", [object(), [None], {"a": [None]}, {3: 4}, b"x"])
def test_what_toml_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(Invalid, match="cannot write"):
        patched(TEXT, {"x": value})


def test_a_table_that_cannot_be_added_to_is_left_alone() -> None:
    text = 'house.zone = "UTC"\nhouse.drain_s = 1\n[agents.x]\n'
    try:
        result = patched(text, {"house": {"listen": {"port": 1}}})
    except RetinueError as error:
        assert error.code == "config.unchangeable"
    else:
        assert tomllib.loads(result)["house"] == {"zone": "UTC", "drain_s": 1, "listen": {"port": 1}}


KEYS = st.sampled_from(["a", "b", "c", "d e", "f.g", "é"])
LEAVES = st.one_of(st.booleans(), st.integers(-9, 9), st.text(max_size=5), st.lists(st.integers(0, 3), max_size=3))
TREES = st.dictionaries(
    KEYS, st.recursive(LEAVES, lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=8)
)
CHANGES = st.dictionaries(
    KEYS,
    st.recursive(st.one_of(st.none(), LEAVES), lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=8),
)


def merged(table: Any, change: Any) -> Any:
    """What a change means, said once more in the plainest way."""
    if not isinstance(change, dict):
        return change
    result = dict(table) if isinstance(table, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def without_empty(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    kept = {key: without_empty(inner) for key, inner in value.items()}
    return {key: inner for key, inner in kept.items() if inner != {}}


@given(tree=TREES, changes=CHANGES)
def test_a_changed_text_says_what_it_said_and_what_was_asked_for_or_is_not_changed(
    tree: dict[str, Any], changes: dict[str, Any]
) -> None:
    text = "# first\n" + tomlkit.dumps(tree) + "# last\n"
    try:
        result = patched(text, changes)
    except RetinueError as error:
        assert error.code == "config.unchangeable"
        return
    assert without_empty(tomllib.loads(result)) == without_empty(merged(tree, changes))
    assert "# first\n" in result and "# last\n" in result
