"""The checklist itself, the plug-in that keeps its score, and the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from spec_lines import SPEC_FILE, gather, read_spec_lines, spread
from spec_report import report

RunTests = Callable[..., pytest.RunResult]


@pytest.fixture
def run_tests(pytester: pytest.Pytester) -> RunTests:
    """Run a test file of one's own under the plug-in, apart from this run."""
    pytester.makeini("[pytest]\nmarkers = spec")

    def run(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile("import pytest\nspec = pytest.mark.spec\n" + source)
        plugins = ("-p", "spec_plugin", "-p", "no:cacheprovider")
        results = ("--spec-results", "out/spec.json")
        return pytester.runpytest_inprocess(*plugins, *results, *arguments, no_reraise_ctrlc=True)

    return run


def shown_in(folder: Path) -> list[str]:
    return json.loads((folder / "out" / "spec.json").read_text())["shown"]


def test_every_line_of_the_four_systems_has_one_owner() -> None:
    spec = read_spec_lines()

    assert {system.letter: len(system.lines) for system in spec.systems} == {"H": 91, "D": 83, "A": 90, "C": 125}
    assert len(spec.owner_of) == 389
    assert set(spec.ruled_out) == {"H64", "H71"}


def test_a_line_owned_twice_is_refused(tmp_path: Path) -> None:
    twice = tmp_path / "spec_lines.toml"
    twice.write_text(SPEC_FILE.read_text().replace('front = "', 'front = "H1 '))

    with pytest.raises(ValueError, match="H1 has two owners: core and front"):
        read_spec_lines(twice)


def test_a_line_nobody_owns_is_refused(tmp_path: Path) -> None:
    unowned = tmp_path / "spec_lines.toml"
    unowned.write_text(SPEC_FILE.read_text().replace("H1-H7", "H1-H6"))

    with pytest.raises(ValueError, match="without an owner, or without a system: H7"):
        read_spec_lines(unowned)


def test_ranges_are_spread_and_gathered_again() -> None:
    assert list(spread("H9-H11 D3")) == ["H9", "H10", "H11", "D3"]
    assert gather(["H11", "H9", "D3", "H10", "H13"]) == "D3 H9-H11 H13"


def test_a_line_is_shown_by_a_passing_test_unless_another_fails(pytester: pytest.Pytester, run_tests: RunTests) -> None:
    outcome = run_tests(
        """
@spec("H1", "D3")
def test_passes(): pass

@spec("H2")
@pytest.mark.parametrize("works", [True, False])
def test_fails_once(works): assert works

@spec("H3")
def test_is_skipped(): pytest.skip()

@pytest.fixture
def falls_apart():
    yield
    raise OSError

@spec("H4")
def test_ends_badly(falls_apart): pass
"""
    )

    outcome.assert_outcomes(passed=3, failed=1, skipped=1, errors=1)
    assert shown_in(pytester.path) == ["D3", "H1"]


def test_a_mark_that_names_no_line_stops_the_run(pytester: pytest.Pytester, run_tests: RunTests) -> None:
    outcome = run_tests(
        """
@spec("H92")
def test_beyond_the_end(): pass

@spec()
def test_of_nothing(): pass
""",
        "-k",
        "neither",
    )

    assert outcome.ret == pytest.ExitCode.USAGE_ERROR
    outcome.stderr.fnmatch_lines(["*test_beyond_the_end: no such line: H92", "*test_of_nothing: spec() names no line"])
    assert not (pytester.path / "out").exists()


def test_an_interrupted_run_leaves_no_score(pytester: pytest.Pytester, run_tests: RunTests) -> None:
    run_tests('@spec("H1")\ndef test_stops(): raise KeyboardInterrupt')

    assert not (pytester.path / "out").exists()


def test_the_report_ends_in_the_sums_and_never_counts_a_line_that_is_ruled_out() -> None:
    lines = list(report(read_spec_lines(), {"H1", "H2", "H64", "D2"}))

    assert lines[-5:] == ["H 2/91", "D 1/83", "A 0/90", "C 0/125", "total 3/389"]
    assert "  core     shown    H1-H2" in lines
    assert "  front    missing  A19 A57-A61 A66-A67 A74 A76 A88 A90" in lines
    assert any(line.startswith("  ruled out H64: ") for line in lines)
