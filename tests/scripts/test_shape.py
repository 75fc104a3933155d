"""`make shape` counts what its rows say."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from scripts import shape


def parse(source: str) -> ast.Module:
    return ast.parse(dedent(source))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return 1", 1),
        ("if a and b or c:\n        pass", 4),
        ("for each in a:\n        while each:\n            pass", 3),
        ("return [x for x in a if x if x > 1]", 4),
        ("try:\n        pass\n    except A:\n        pass\n    except B:\n        pass", 3),
        ("match a:\n        case 1:\n            pass\n        case _:\n            pass", 2),
        ("def inner():\n        if a:\n            pass", 1),
    ],
)
def test_the_complexity_of_a_function_is_one_more_than_its_branches(body: str, expected: int) -> None:
    [function, *_] = shape.functions(parse(f"def f():\n    {body}\n"))
    assert shape.complexity(function) == expected


def test_a_private_function_counts_as_used_once_if_its_module_names_it_in_one_other_place() -> None:
    module = parse(
        """
        def _once(): ...
        def _twice(): ...
        def _never(): ...
        def public(self): return _once() + _twice() + self._method() + _twice()
        class A:
            def __init__(self): ...
            def _method(self): ...
        """
    )
    assert shape.share_used_once({"a": module}) == 2 / 4


def test_parameters_optional_fields_and_lines_are_counted() -> None:
    module = parse(
        """
        class A:
            here: int
            maybe: int | None = None

            def __init__(self, a, /, b, *, c): ...

        async def opens():
            # a comment
            return 1
        """
    )
    node = shape.find_class(module, "A")
    assert shape.constructor_parameters(node) == ["a", "b", "c"]
    assert list(shape.optional_fields(node)) == ["maybe"]
    assert shape.function_lines(module, "opens") == 3


def test_a_signal_shows_whether_its_goal_is_met() -> None:
    assert str(shape.Signal("lines", 10, 12)).startswith("ok  lines ")
    assert str(shape.Signal("share", 61, 45, " %")).endswith("61 %  goal 45 %")
    assert not shape.Signal("lines", 13, 12).is_met
