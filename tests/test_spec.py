"""The checklist, the plugin that stores the results of marked tests, and the report about them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from spec_lines import SPEC_FILE, SpecLines, collapse_ranges, expand_ranges, read_spec_lines
from spec_report import REFRESH, LineStatus, format_report, main, score_lines
from spec_results import RESULTS, Content, MarkedTest, Outcome, Results, read_content, read_results

from retinue.domain.structs import replace

RunTests = Callable[..., pytest.RunResult]
PASSED, FAILED, SKIPPED, NOT_RUN = Outcome.PASSED, Outcome.FAILED, Outcome.SKIPPED, Outcome.NOT_RUN
CONTENT = Content(files={"src/a.py": "1"}, revision="abc1234")


@pytest.fixture
def run_tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> RunTests:
    """Run a separate test file under the plugin, apart from this run."""
    monkeypatch.setenv("PYTHONPATH", str(SPEC_FILE.parent))  # for runs in their own processes
    pytester.makeini("[pytest]\nmarkers =\n    spec\n    slow")
    (pytester.path / "tests").mkdir()

    def run(source: str, *arguments: str, workers: int = 0) -> pytest.RunResult:
        (pytester.path / "tests" / "test_it.py").write_text("import pytest\nspec = pytest.mark.spec\n" + source)
        plugins = ("-p", "spec_plugin", "-p", "no:cacheprovider")
        if workers:
            return pytester.runpytest_subprocess(*plugins, "-n", str(workers), *arguments)
        return pytester.runpytest_inprocess(*plugins, *arguments, no_reraise_ctrlc=True)

    return run


def read_stored_results(folder: Path) -> Results:
    results = read_results(folder / RESULTS)
    assert results is not None
    return results


def read_outcomes(folder: Path) -> dict[str, Outcome]:
    return {name.partition("::test_")[2]: test.outcome for name, test in read_stored_results(folder).tests.items()}


def create_results(*tests: MarkedTest, all_collected: bool = True) -> Results:
    return Results(content=CONTENT, tests={str(n): test for n, test in enumerate(tests)}, all_collected=all_collected)


def marked_test(*marks: str, outcome: Outcome = PASSED, slow: bool = False) -> MarkedTest:
    return MarkedTest(marks=marks, outcome=outcome, slow=slow)


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=folder, check=True)


# --- the checklist ---


def test_every_line_of_the_spec_checklist_has_one_owner() -> None:
    spec = read_spec_lines()

    assert {system.letter: len(system.lines) for system in spec.systems} == {"H": 91, "D": 83, "A": 90, "C": 125}
    assert len(spec.owner_of) == 389
    assert set(spec.ruled_out) == {"H64", "H71"}


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('web = "', 'web = "H1 ', "H1 has two owners: core and web"),
        ("H1-H7", "H1-H6", "without an owner, or without a system: H7"),
        ("[clauses.A30]", "[clauses.A91]", "with clauses, but in no system: A91"),
        ("[clauses.A30]", '[clauses.A31]\nmodel = "x"\n[clauses.A30]', "with fewer than two clauses: A31"),
        ("[partly]", '[partly]\n"A30.breadth" = "x"', "partly, but neither a line nor a clause: A30.breadth"),
    ],
)
def test_a_spec_checklist_that_contradicts_itself_is_refused(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    changed = tmp_path / "spec_lines.toml"
    changed.write_text(SPEC_FILE.read_text().replace(old, new, 1))

    with pytest.raises(ValueError, match=complaint):
        read_spec_lines(changed)


def test_ranges_of_spec_lines_are_expanded_and_collapsed() -> None:
    assert list(expand_ranges("H9-H11 D3")) == ["H9", "H10", "H11", "D3"]
    assert collapse_ranges(["H11", "H9", "D3", "H10", "H13"]) == "D3 H9-H11 H13"


# --- results of a run ---

TESTS_WITH_EVERY_OUTCOME = """
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

@pytest.fixture
def never_begins(): raise OSError

@spec("H5")
def test_begins_badly(never_begins): pass

def test_of_nothing(): pass
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_test_run_stores_the_outcome_of_each_test_with_a_spec_mark(
    pytester: pytest.Pytester, run_tests: RunTests, workers: int
) -> None:
    outcome = run_tests(TESTS_WITH_EVERY_OUTCOME, workers=workers)

    outcome.assert_outcomes(passed=4, failed=1, skipped=1, errors=2)
    assert read_outcomes(pytester.path) == {
        "passes": PASSED,
        "fails_once[True]": PASSED,
        "fails_once[False]": FAILED,
        "is_skipped": SKIPPED,
        "ends_badly": FAILED,
        "begins_badly": FAILED,
    }
    results = read_stored_results(pytester.path)
    assert results.tests["tests/test_it.py::test_passes"].marks == ("H1", "D3")
    assert not results.are_partial


TWO_TESTS = """
@spec("H1")
def test_one(): pass

@spec("H2")
def test_two(): pass
"""


@pytest.mark.parametrize("arguments", [("-k", "one"), ("tests/test_it.py::test_one",), ("-x", "--ignore", "elsewhere")])
def test_a_run_of_some_tests_makes_the_spec_results_partial(
    pytester: pytest.Pytester, run_tests: RunTests, arguments: tuple[str, ...]
) -> None:
    run_tests(TWO_TESTS, *arguments)

    assert read_outcomes(pytester.path)["one"] is PASSED
    assert read_stored_results(pytester.path).are_partial


def test_a_test_run_without_the_slow_tests_makes_complete_spec_results(
    pytester: pytest.Pytester, run_tests: RunTests
) -> None:
    run_tests(TWO_TESTS + '@spec("H3")\n@pytest.mark.slow\ndef test_three(): pass\n', "-m", "not slow")

    assert read_outcomes(pytester.path) == {"one": PASSED, "two": PASSED, "three": NOT_RUN}
    assert not read_stored_results(pytester.path).are_partial


def test_a_test_file_that_cannot_be_collected_makes_the_spec_results_partial(
    pytester: pytest.Pytester, run_tests: RunTests
) -> None:
    (pytester.path / "tests" / "test_broken.py").write_text("import nothing_of_that_name")

    run_tests(TWO_TESTS, "--continue-on-collection-errors")

    assert read_outcomes(pytester.path) == {"one": PASSED, "two": PASSED}
    assert read_stored_results(pytester.path).are_partial


def test_spec_results_of_the_same_content_are_merged_and_newer_outcomes_win(
    pytester: pytest.Pytester, run_tests: RunTests
) -> None:
    flag = pytester.path / "flag"  # not part of the content
    source = TWO_TESTS + f"@spec('H3')\ndef test_three(): assert __import__('pathlib').Path({str(flag)!r}).exists()\n"
    run_tests(source, "-k", "one or three")
    assert read_outcomes(pytester.path) == {"one": PASSED, "two": NOT_RUN, "three": FAILED}

    flag.touch()
    run_tests(source, "tests/test_it.py::test_two", "tests/test_it.py::test_three")

    assert read_outcomes(pytester.path) == {"one": PASSED, "two": PASSED, "three": PASSED}
    assert not read_stored_results(pytester.path).are_partial, "the first run has collected every test"


def test_spec_results_of_other_content_are_replaced(pytester: pytest.Pytester, run_tests: RunTests) -> None:
    run_tests(TWO_TESTS)

    run_tests(TWO_TESTS + "\n", "-k", "one")

    assert read_outcomes(pytester.path) == {"one": PASSED, "two": NOT_RUN}


def test_a_test_run_without_spec_marks_leaves_the_spec_results_unchanged(
    pytester: pytest.Pytester, run_tests: RunTests
) -> None:
    run_tests(TWO_TESTS)
    before = (pytester.path / RESULTS).read_bytes()

    run_tests(TWO_TESTS + "def test_of_nothing(): pass\n", "-k", "nothing")

    assert (pytester.path / RESULTS).read_bytes() == before


def test_an_interrupted_test_run_stores_the_spec_results_so_far(pytester: pytest.Pytester, run_tests: RunTests) -> None:
    run_tests(TWO_TESTS + '@spec("H3")\ndef test_stops(): raise KeyboardInterrupt\n')

    assert read_outcomes(pytester.path) == {"one": PASSED, "two": PASSED, "stops": NOT_RUN}
    assert read_stored_results(pytester.path).are_partial


def test_spec_results_that_cannot_be_written_fail_no_test_and_are_reported(
    pytester: pytest.Pytester, run_tests: RunTests
) -> None:
    (pytester.path / "build").write_text("a file where a folder should be")

    outcome = run_tests(TWO_TESTS)

    assert outcome.ret == pytest.ExitCode.OK
    outcome.stdout.fnmatch_lines(["The results for make spec were not kept: *build*"])


def test_spec_results_are_not_stored_if_files_changed_during_the_test_run(
    pytester: pytest.Pytester, run_tests: RunTests
) -> None:
    outcome = run_tests(
        "@spec('H1')\ndef test_one(): __import__('pathlib').Path(__file__).with_name('new.py').touch()\n"
    )

    outcome.stdout.fnmatch_lines(["*not kept: tests/new.py changed while the tests ran"])
    assert not (pytester.path / RESULTS).exists()


def test_an_unknown_spec_mark_stops_the_test_run(pytester: pytest.Pytester, run_tests: RunTests) -> None:
    outcome = run_tests(
        """
@spec("H92")
def test_beyond_the_end(): pass

@spec()
def test_of_nothing(): pass

@spec("A30")
def test_of_which_clause(): pass

@spec("A30.breadth")
def test_of_no_clause(): pass

@spec("H1.life")
def test_of_a_line_without_clauses(): pass
""",
        "-k",
        "neither",
    )

    assert outcome.ret == pytest.ExitCode.USAGE_ERROR
    choices = "(choose from A30.depth, A30.cycles, A30.fan_out)"
    outcome.stderr.fnmatch_lines(
        [
            "*test_beyond_the_end: no such line: H92",
            "*test_of_nothing: spec() names no line",
            f"*test_of_which_clause: A30 has several clauses {choices}",
            f"*test_of_no_clause: no such clause: A30.breadth {choices}",
            "*test_of_a_line_without_clauses: no such clause: H1.life (H1 counts as one)",
        ]
    )
    assert not (pytester.path / RESULTS).exists()


# --- content of the results ---


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("src/a.py", "tests/test_a.py", "tests/spec_lines.toml", "web/src/a.ts", "docs/a.md", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


CHANGES: Mapping[str, tuple[str, ...]] = {
    "src/a.py": ("src/a.py",),
    "src/new.py": ("src/new.py",),
    "web/src/a.ts": ("web/src/a.ts",),
    "pyproject.toml": ("pyproject.toml",),
    "docs/a.md": (),
    "tests/spec_lines.toml": (),
    "src/__pycache__/a.pyc": (),
}


@pytest.mark.parametrize("in_git", [True, False])
@pytest.mark.parametrize(("path", "seen"), CHANGES.items())
def test_the_content_of_spec_results_differs_after_an_uncommitted_change_of_a_tested_file(
    project: Path, path: str, seen: tuple[str, ...], in_git: bool
) -> None:
    if in_git:
        git(project, "init", "-q")
        (project / ".gitignore").write_text("__pycache__/\n")
        git(project, "add", ".")
        git(project, "commit", "-qm", "first")
    before = read_content(project)

    (project / path).parent.mkdir(exist_ok=True)
    (project / path).write_text("changed")

    assert read_content(project).changed_since(before) == seen


def test_the_content_of_spec_results_is_the_same_after_a_commit_and_differs_after_a_deletion(project: Path) -> None:
    git(project, "init", "-q")
    outside = read_content(project)
    git(project, "add", ".")
    git(project, "commit", "-qm", "first")
    (project / "src/a.py").write_text("changed")
    before = read_content(project)
    git(project, "commit", "-qam", "second")

    committed = read_content(project)
    assert committed.files == before.files != outside.files
    assert (before.revision.partition(" ")[2], committed.revision.partition(" ")[2]) == ("with uncommitted changes", "")

    (project / "src/a.py").unlink()
    assert read_content(project).changed_since(committed) == ("src/a.py",)


# --- scores ---


def read_line_status(spec: SpecLines, line: str, *tests: MarkedTest, all_collected: bool = True) -> LineStatus:
    return score_lines(spec, create_results(*tests, all_collected=all_collected)).standing[line]


@pytest.mark.parametrize(
    ("tests", "standing"),
    [
        ([marked_test("H1")], LineStatus.SHOWN),
        ([marked_test("H1"), marked_test("H1", outcome=SKIPPED)], LineStatus.SHOWN),
        ([marked_test("H1"), marked_test("H1", outcome=FAILED)], LineStatus.FAILED),
        ([marked_test("H1", outcome=SKIPPED)], LineStatus.NOT_RUN),
        ([marked_test("H1", outcome=NOT_RUN)], LineStatus.NOT_RUN),
        ([marked_test("H2")], LineStatus.MISSING),
    ],
)
def test_a_spec_line_is_shown_by_a_passing_test_unless_another_test_of_it_fails(
    tests: list[MarkedTest], standing: LineStatus
) -> None:
    assert read_line_status(read_spec_lines(), "H1", *tests) is standing


def test_a_spec_line_whose_tests_may_not_have_been_collected_is_not_run_rather_than_missing() -> None:
    assert read_line_status(read_spec_lines(), "H1", marked_test("H2"), all_collected=False) is LineStatus.NOT_RUN


def test_a_spec_line_with_clauses_is_shown_when_each_of_its_clauses_is() -> None:
    spec = read_spec_lines()
    every = [marked_test("A30.depth"), marked_test("A30.cycles"), marked_test("A30.fan_out")]

    assert read_line_status(spec, "A30", *every) is LineStatus.SHOWN
    assert read_line_status(spec, "A30", *every[:2]) is LineStatus.PARTLY
    assert read_line_status(spec, "A30", *every, marked_test("A30.depth", outcome=FAILED)) is LineStatus.FAILED
    assert read_line_status(spec, "A30", marked_test("A30")) is LineStatus.MISSING, (
        "the line itself is not one of its clauses"
    )


@pytest.mark.parametrize("what", ["A30", "A30.cycles"])
def test_a_spec_line_listed_as_partly_shown_is_never_reported_as_shown(what: str) -> None:
    spec = replace(read_spec_lines(), partly={what: "circles come later"})
    results = create_results(marked_test("A30.depth", "A30.cycles", "A30.fan_out"))

    score = score_lines(spec, results)

    assert score.standing["A30"] is LineStatus.PARTLY
    [line] = [line for line in format_report(spec, results, score) if " A30" in line and "partly" in line]
    assert line.endswith("circles come later") and ("without cycles" in line) is (what == "A30.cycles")


def test_the_spec_report_ends_with_the_totals_and_excludes_ruled_out_lines() -> None:
    spec = read_spec_lines()
    results = create_results(
        marked_test("H1", "H2", "H64", "D2"), marked_test("A30.depth"), marked_test("C9", outcome=FAILED)
    )

    lines = list(format_report(spec, results, score_lines(spec, results)))

    assert lines[-5:] == ["H 2/91", "D 1/83", "A 0/90", "C 0/125", "total 3/389, 1 partly"]
    assert "  core        shown    H1-H2" in lines
    assert "  delegation  partly   A30 without cycles; fan_out" in lines
    assert "  connectors  failed   C9" in lines
    assert any(line.startswith("  web         missing  A19 A57-A61") for line in lines)
    assert any(line.startswith("  ruled out H64: ") for line in lines)
    assert lines[0] == "results at abc1234: 3 of 3 marked tests ran"


@pytest.mark.parametrize(
    ("results", "begins"),
    [
        (
            create_results(marked_test("H1"), marked_test("H2", outcome=NOT_RUN)),
            ["results of a partial run at abc1234: 1 of 2 marked tests ran", REFRESH],
        ),
        (
            create_results(marked_test("H1"), all_collected=False),
            ["results of a partial run at abc1234: 1 marked tests ran", REFRESH],
        ),
        (
            create_results(marked_test("H1"), marked_test("H2", outcome=NOT_RUN, slow=True)),
            ["results at abc1234: 1 of 2 marked tests ran", "1 slow marked tests did not run: make test-slow"],
        ),
    ],
)
def test_a_partial_test_run_is_reported_as_partial_in_the_spec_report(results: Results, begins: list[str]) -> None:
    lines = list(format_report(read_spec_lines(), results, score_lines(read_spec_lines(), results)))

    assert lines[:2] == begins
    assert lines[-1].endswith("(partial run)") is results.are_partial


# --- make spec ---


def test_without_results_the_spec_report_names_the_command_to_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([], root=tmp_path) == 1
    assert capsys.readouterr().out == f"checklist: there are no test results\n{REFRESH}\n"


def test_the_spec_report_refuses_stale_results_and_names_the_changed_files(
    pytester: pytest.Pytester, run_tests: RunTests, capsys: pytest.CaptureFixture[str]
) -> None:
    run_tests(TWO_TESTS)
    capsys.readouterr()
    assert main([], root=pytester.path) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "total 2/389, 0 partly"

    for number in range(7):
        (pytester.path / "tests" / f"new{number}.py").touch()
    assert main([], root=pytester.path) == 1
    names = ", ".join(f"tests/new{number}.py" for number in range(5))
    stale = f"checklist: 7 files have changed since the tests ran at unknown: {names} and 2 more"
    assert capsys.readouterr().out == f"{stale}\n{REFRESH}\n"
    assert main(["--if-fresh"], root=pytester.path) == 0
    assert capsys.readouterr().out == f"{stale}; {REFRESH}\n"


def test_the_spec_report_with_if_fresh_prints_only_the_totals(
    pytester: pytest.Pytester, run_tests: RunTests, capsys: pytest.CaptureFixture[str]
) -> None:
    run_tests(TWO_TESTS + '@spec("H3")\ndef test_fails(): assert False\n')
    capsys.readouterr()

    assert main(["--if-fresh"], root=pytester.path) == 0
    assert capsys.readouterr().out.splitlines() == ["H 2/91", "D 0/83", "A 0/90", "C 0/125", "total 2/389, 0 partly"]


def test_the_spec_report_names_a_failed_test_with_a_spec_mark_and_fails(
    pytester: pytest.Pytester, run_tests: RunTests, capsys: pytest.CaptureFixture[str]
) -> None:
    run_tests(TWO_TESTS + '@spec("H3")\ndef test_fails(): assert False\n')
    capsys.readouterr()

    assert main([], root=pytester.path) == 1
    assert "failed: tests/test_it.py::test_fails" in capsys.readouterr().out.splitlines()


def test_the_run_option_of_the_spec_report_refreshes_the_results_and_unknown_options_are_refused(
    pytester: pytest.Pytester, run_tests: RunTests, capfd: pytest.CaptureFixture[str]
) -> None:
    run_tests(TWO_TESTS)
    pytester.makeconftest("pytest_plugins = ['spec_plugin']")
    (pytester.path / "tests" / "test_more.py").write_text(
        "import pytest\n@pytest.mark.spec('H3')\ndef test_it(): pass\n"
    )
    assert main([], root=pytester.path) == 1
    capfd.readouterr()

    assert main(["--run", "-p", "no:cacheprovider"], root=pytester.path) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "total 3/389, 0 partly"
    with pytest.raises(SystemExit):
        main(["--frehs"], root=pytester.path)


def test_an_unreadable_spec_results_file_counts_as_no_results(tmp_path: Path) -> None:
    path = tmp_path / RESULTS
    path.parent.mkdir()
    for text in ("", "[]", "{}", json.dumps({"tests": {"a": {}}, "content": {"files": {}}, "all_collected": True})):
        path.write_text(text)
        assert read_results(path) is None
