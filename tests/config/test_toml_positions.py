"""Each key is found on the line where it is written."""

from __future__ import annotations

import tomllib
from typing import Any

import tomlkit
from hypothesis import given
from hypothesis import strategies as st

from retinue.config.errors import KeyPath
from retinue.config.toml_positions import find_key_lines

TEXT = '''\
a = 1
b.c = """
[not.a.table]
x = 1 \\""""
d = [ # ]
  1, "]", # two
  { e = 'f', g = [
    2 ] },
]
"h i".'j' = 3 # = 4

[k] # [l]
m = { n = 1, o.p = 2 }
q = """x""\\"
"""
[[r]]
s = 1979-05-27T07:32:00Z
[r.t]
u = 1
[[r]]
[[r.v]]
w = \'\'\'
\'\'\'
x = 1e5
["\\u00e9"]
y = -inf
'''


def test_keys_of_every_toml_form_are_found_on_their_lines() -> None:
    tomllib.loads(TEXT)
    assert find_key_lines(TEXT) == {
        ("a",): 1,
        ("b",): 2,
        ("b", "c"): 2,
        ("d",): 5,
        ("d", 0): 6,
        ("d", 1): 6,
        ("d", 2): 7,
        ("d", 2, "e"): 7,
        ("d", 2, "g"): 7,
        ("d", 2, "g", 0): 8,
        ("h i",): 10,
        ("h i", "j"): 10,
        ("k",): 12,
        ("k", "m"): 13,
        ("k", "m", "n"): 13,
        ("k", "m", "o"): 13,
        ("k", "m", "o", "p"): 13,
        ("k", "q"): 14,
        ("r",): 16,
        ("r", 0): 16,
        ("r", 0, "s"): 17,
        ("r", 0, "t"): 18,
        ("r", 0, "t", "u"): 19,
        ("r", 1): 20,
        ("r", 1, "v"): 21,
        ("r", 1, "v", 0): 21,
        ("r", 1, "v", 0, "w"): 22,
        ("r", 1, "v", 0, "x"): 24,
        ("é",): 25,
        ("é", "y"): 26,
    }


def test_toml_keys_are_found_on_the_same_lines_with_crlf_line_endings() -> None:
    assert find_key_lines(TEXT.replace("\n", "\r\n")) == find_key_lines(TEXT)


KEYS = st.text(max_size=4)
LEAVES = st.one_of(st.booleans(), st.integers(), st.text(max_size=8), st.lists(st.text(max_size=3), max_size=3))
TREES = st.dictionaries(
    KEYS, st.recursive(LEAVES, lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=10)
)


def paths(value: Any, path: KeyPath = ()) -> set[KeyPath]:
    if isinstance(value, dict):
        return {path} | {each for key, inner in value.items() for each in paths(inner, (*path, key))}
    if isinstance(value, list):
        return {path} | {each for index, inner in enumerate(value) for each in paths(inner, (*path, index))}
    return {path}


@given(TREES)
def test_the_lines_of_exactly_the_keys_of_any_toml_are_found(tree: dict[str, Any]) -> None:
    text = tomlkit.dumps(tree)
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # The library does not escape everything that it should.
        return
    found = set(find_key_lines(text))
    leaves = {path for path in paths(parsed) if path}
    # A table that contains only tables has no line.
    assert found <= leaves
    assert all(path in found or any(each[: len(path)] == path for each in found) for path in leaves)


@given(st.text(alphabet="[]{}\"'=.,#\\\n ab1"))
def test_finding_key_lines_in_invalid_toml_raises_no_error(text: str) -> None:
    find_key_lines(text)
