"""Patching the text of a settings file: comments, order and everything else stay as they are."""

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
# My server.
config_version = 2  # two

# What people see.
[server]
zone = "UTC"  # the wall clock
drain_s = 5

[server.listen]  # the address
port = 7000

# The agents.

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


def apply_patch(text: str, changes: dict[str, Any], validate: Callable[[str], object] = tomllib.loads) -> str:
    return patch_settings_text(text, changes, expected_hash=hash_settings_text(text), validate=validate)


def test_a_toml_patch_changes_only_its_own_line() -> None:
    result = apply_patch(TEXT, {"server": {"zone": "Europe/Berlin"}})
    assert result == TEXT.replace('"UTC"', '"Europe/Berlin"')


def test_a_toml_patch_adds_a_new_key_after_the_last_key_of_its_table() -> None:
    result = apply_patch(TEXT, {"server": {"listen": {"host": "::1"}}})
    assert result == TEXT.replace("port = 7000\n", 'port = 7000\nhost = "::1"\n')


def test_a_toml_patch_adds_a_new_table_after_its_sibling_tables() -> None:
    result = apply_patch(TEXT, {"server": {"logs": {"level": "debug"}}, "agents": {"bob": {"model": "m"}}})
    expected = TEXT.replace("port = 7000\n", 'port = 7000\n\n[server.logs]\nlevel = "debug"\n')
    assert result == expected.replace("# careful\n", '# careful\n\n[agents.bob]\nmodel = "m"\n')


def test_a_toml_patch_adds_a_top_level_key_above_the_tables() -> None:
    result = apply_patch(TEXT, {"include": ["a.toml"]})
    assert result == TEXT.replace("# two\n", '# two\ninclude = ["a.toml"]\n')


def test_a_toml_patch_with_none_removes_a_key_or_table_and_keeps_other_comments() -> None:
    result = apply_patch(TEXT, {"server": {"drain_s": None, "listen": None}, "nobody": None})
    assert result == TEXT.replace("drain_s = 5\n", "").replace("\n[server.listen]  # the address\nport = 7000\n", "")


def test_a_toml_patch_that_removes_a_table_removes_its_own_comment_and_keeps_separate_comments() -> None:
    result = apply_patch(TEXT, {"agents": {"ada": None}})
    assert "# The agents.\n\n[[rooms]]" in result and "# Ada came first." not in result
    assert apply_patch("# My server.\n[server]\nzone = 'UTC'\n", {"server": None}) == "# My server.\n"


def test_a_toml_patch_can_remove_the_last_table_of_a_section() -> None:
    assert "agents" not in tomllib.loads(apply_patch(TEXT, {"agents": {"ada": None}}))


@pytest.mark.spec("C3.arrays")
def test_a_toml_patch_merges_tables_of_an_array_by_id_and_adds_new_tables() -> None:
    result = apply_patch(TEXT, {"rooms": [{"id": "blue", "size": 9}, {"id": "green"}]})
    assert tomllib.loads(result)["rooms"] == [{"id": "red", "size": 1}, {"id": "blue", "size": 9}, {"id": "green"}]
    assert "size = 1  # small" in result and "# The large one." in result


def test_a_toml_patch_merges_tables_of_an_array_without_ids_by_name() -> None:
    text = "rooms = [\n  { name = 'a', x = 1 }, # first\n  { name = 'b' },\n]\n"
    result = apply_patch(text, {"rooms": [{"name": "a", "y": 2}, {"name": "c"}]})
    assert tomllib.loads(result)["rooms"] == [{"name": "a", "x": 1, "y": 2}, {"name": "b"}, {"name": "c"}]
    assert "# first" in result


@pytest.mark.parametrize("given_", [[{"id": "a"}, {"x": 1}], [{"id": "a"}, {"id": "a"}], [1], []])
def test_a_toml_patch_replaces_an_array_without_distinct_ids_completely(given_: list[object]) -> None:
    assert tomllib.loads(apply_patch(TEXT, {"rooms": given_})).get("rooms", []) == given_


def test_a_toml_patch_distinguishes_one_from_true() -> None:
    assert apply_patch("a = 1 # x\n", {"a": True}) == "a = true # x\n"


def test_a_toml_patch_works_on_an_empty_file() -> None:
    assert tomllib.loads(apply_patch("", {"server": {"listen": {"port": 1}}})) == {"server": {"listen": {"port": 1}}}


def test_a_toml_patch_with_a_stale_hash_is_refused() -> None:
    with pytest.raises(Conflict) as refused:
        patch_settings_text(
            TEXT + "#", {"server": {"zone": "UTC"}}, expected_hash=hash_settings_text(TEXT), validate=tomllib.loads
        )
    assert refused.value.code == "config.changed"


def test_a_toml_patch_rejected_by_validation_raises_its_error() -> None:
    def refuse(text: str) -> None:
        assert "drain_s = 6" in text
        raise Invalid("no")

    with pytest.raises(Invalid, match="no"):
        apply_patch(TEXT, {"server": {"drain_s": 6}}, refuse)


@pytest.mark.parametrize("value", [object(), [None], {"a": [None]}, {3: 4}, b"x"])
def test_a_toml_patch_with_a_value_that_toml_cannot_express_is_refused(value: object) -> None:
    with pytest.raises(Invalid, match="cannot write"):
        apply_patch(TEXT, {"x": value})


def test_a_toml_patch_of_a_table_written_as_dotted_keys_extends_the_table_or_is_refused() -> None:
    text = 'server.zone = "UTC"\nserver.drain_s = 1\n[agents.x]\n'
    try:
        result = apply_patch(text, {"server": {"listen": {"port": 1}}})
    except RetinueError as error:
        assert error.code == "config.unchangeable"
    else:
        assert tomllib.loads(result)["server"] == {"zone": "UTC", "drain_s": 1, "listen": {"port": 1}}


KEYS = st.sampled_from(["a", "b", "c", "d e", "f.g", "é"])
LEAVES = st.one_of(st.booleans(), st.integers(-9, 9), st.text(max_size=5), st.lists(st.integers(0, 3), max_size=3))
TREES = st.dictionaries(
    KEYS, st.recursive(LEAVES, lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=8)
)
CHANGES = st.dictionaries(
    KEYS,
    st.recursive(st.one_of(st.none(), LEAVES), lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=8),
)


def expected_merge(table: Any, change: Any) -> Any:
    """Compute the effect of a change in the simplest way."""
    if not isinstance(change, dict):
        return change
    result = dict(table) if isinstance(table, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = expected_merge(result.get(key), value)
    return result


def without_empty(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    kept = {key: without_empty(inner) for key, inner in value.items()}
    return {key: inner for key, inner in kept.items() if inner != {}}


@given(tree=TREES, changes=CHANGES)
def test_any_toml_patch_gives_exactly_the_merged_values_or_is_refused(
    tree: dict[str, Any], changes: dict[str, Any]
) -> None:
    text = "# first\n" + tomlkit.dumps(tree) + "# last\n"
    try:
        result = apply_patch(text, changes)
    except RetinueError as error:
        assert error.code == "config.unchangeable"
        return
    assert without_empty(tomllib.loads(result)) == without_empty(expected_merge(tree, changes))
    assert "# first\n" in result and "# last\n" in result
