"""Names in `src/` follow the rules in `name_rules.py`."""

from __future__ import annotations

import ast
from collections import defaultdict

import name_rules
import pytest

NO_NEXT_STEP = {
    "RetinueError",  # the base class
    "StaleEpoch",  # internal: another worker owns the run, and no person sees it
}


@pytest.fixture(scope="module")
def files() -> dict[str, ast.Module]:
    return dict(name_rules.source_files())


def test_no_two_public_classes_share_a_name(files: dict[str, ast.Module]) -> None:
    assert name_rules.repeated_classes(files) == []


def test_a_module_name_repeats_only_where_the_style_allows_it(files: dict[str, ast.Module]) -> None:
    assert name_rules.repeated_bases(files) == []


def test_no_module_is_named_by_a_participle(files: dict[str, ast.Module]) -> None:
    assert name_rules.participles(files) == []


def test_every_error_code_has_one_class_and_underscores(files: dict[str, ast.Module]) -> None:
    by_code: dict[str, list[str]] = defaultdict(list)
    for each in name_rules.error_classes(files):
        by_code[each.code].append(f"{each.file}:{each.name}")
    assert len(by_code) > 500
    assert {code: places for code, places in by_code.items() if len(places) > 1} == {}
    assert [code for code in by_code if not name_rules.CODE.fullmatch(code)] == []


def test_error_codes_are_not_given_at_call_sites(files: dict[str, ast.Module]) -> None:
    assert name_rules.codes_at_call_sites(files) == []


def test_every_error_has_a_next_step(files: dict[str, ast.Module]) -> None:
    classes = name_rules.error_classes(files)
    missing = [f"{each.file}:{each.name}" for each in classes if each.has_next_step is False]
    assert [each for each in missing if each.partition(":")[2] not in NO_NEXT_STEP] == []


def test_the_name_rules_detect_each_fault() -> None:
    code = 'class A(Exception):\n    code = "a.no-good"\n    def __init__(self):\n        super().__init__("x")\n'
    planted = {
        "store/a.py": ast.parse(code),
        "store/sub/a.py": ast.parse("class A: ..."),
        "store/running.py": ast.parse('raise X("y", code="z.q")'),
    }
    assert name_rules.repeated_classes(planted) == ["A: store/a.py, store/sub/a.py"]
    assert name_rules.repeated_bases(planted) == ["store/a.py, store/sub/a.py"]
    assert name_rules.participles(planted) == ["store/running.py"]
    assert name_rules.codes_at_call_sites(planted) == ["store/running.py:1 z.q"]
    [error] = name_rules.error_classes(planted)
    assert not name_rules.CODE.fullmatch(error.code) and error.has_next_step is False
