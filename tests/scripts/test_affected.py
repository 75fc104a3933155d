"""Which tests run for a change."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import affected, durations
from scripts.affected_tests import (
    BUDGET_S,
    LONG_S,
    SMOKE,
    START_S,
    UNMEASURED_TEST_S,
    WORKERS,
    Change,
    Facts,
    Pick,
    Selection,
    rank,
    seconds_of,
    select,
)
from scripts.source_graph import Tree, defined_names

LOCKS_SOURCE = "def take_lock(): ...\n\n\ndef drop_lock(): ...\n"
SOURCE_FILES = {
    "src/retinue/__init__.py": "",
    "src/retinue/store/__init__.py": "",
    "src/retinue/store/locks.py": LOCKS_SOURCE,
    "src/retinue/engine/claims.py": "from retinue.store.locks import take_lock\n",
    "src/retinue/daemon.py": "from retinue.engine import claims\n",
    "tests/store/test_locks.py": "from retinue.store import locks\n\ndef test_a(): ...\n",
    "tests/engine/test_claims.py": "from retinue.engine.claims import take_lock\n\ndef test_b(): ...\n",
    "tests/flows/helpers.py": "from retinue.daemon import claims\n",
    "tests/flows/test_first.py": "from flows.helpers import claims\n\ndef test_c(): ...\n",
    "tests/policy/test_rules.py": "def test_d(): ...\n",
}


def facts(more: dict[str, str] | None = None, seconds: dict[str, float] | None = None) -> Facts:
    return Facts(Tree({**SOURCE_FILES, **(more or {})}), seconds or {})


def ranked_paths(path: str, known: Facts, lines: frozenset[int] = frozenset()) -> list[str]:
    return [each.path for each in rank(Change(path, known.tree.files.get(path, ""), lines), known)]


def picked_paths(selection: Selection) -> list[str]:
    return [pick.path for pick in selection.picks]


def test_affected_tests_are_ranked_by_their_import_distance_to_the_changed_module() -> None:
    assert ranked_paths("src/retinue/store/locks.py", facts()) == [
        "tests/store/test_locks.py",
        "tests/engine/test_claims.py",
        "tests/flows/test_first.py",
    ]


def test_each_affected_test_file_has_a_reason() -> None:
    reasons = [each.reason for each in rank(Change("src/retinue/store/locks.py", LOCKS_SOURCE), facts())]

    assert reasons[0].startswith("mirrors it; imports it")
    assert "imports it through helpers > daemon > claims" in reasons[2]


def test_an_importer_that_uses_the_changed_name_is_ranked_higher_among_the_affected_tests() -> None:
    known = facts(
        {
            "tests/flows/test_dropping.py": "from retinue.store.locks import drop_lock\n",
            "tests/flows/test_taking.py": "from retinue.store.locks import take_lock\n",
        }
    )

    near = [path for path in ranked_paths("src/retinue/store/locks.py", known, frozenset({4})) if "ing.py" in path]

    assert near == ["tests/flows/test_dropping.py", "tests/flows/test_taking.py"]


def test_a_test_that_names_operations_of_the_changed_module_is_affected() -> None:
    declared = 'A = operation("lock.take")\nB = operation("lock.drop")\nC = operation("lock.list_all")\n'
    known = facts(
        {
            "src/retinue/operations/locks.py": declared,
            "tests/cli/test_locked.py": 'run("lock", "take"); run("lock drop"); call("lock.list_all")',
        }
    )

    assert "tests/cli/test_locked.py" in ranked_paths("src/retinue/operations/locks.py", known)
    assert "tests/policy/test_rules.py" not in ranked_paths("src/retinue/operations/locks.py", known)


def test_an_affected_test_file_that_changed_together_with_the_module_is_ranked_higher() -> None:
    without = facts({"tests/flows/test_later.py": SOURCE_FILES["tests/flows/test_first.py"]})
    known = Facts(without.tree, {}, {"src/retinue/store/locks.py": {"tests/flows/test_later.py": 1.0}})

    def flow_test_paths(each: Facts) -> list[str]:
        return [path for path in ranked_paths("src/retinue/store/locks.py", each) if path.startswith("tests/flows/")]

    assert flow_test_paths(without) == ["tests/flows/test_first.py", "tests/flows/test_later.py"]
    assert flow_test_paths(known) == ["tests/flows/test_later.py", "tests/flows/test_first.py"]


def test_a_module_named_in_a_string_counts_as_imported_for_affected_tests() -> None:
    known = facts({"tests/flows/test_process.py": 'run("-m", "retinue.store.locks")'})

    assert "tests/flows/test_process.py" in ranked_paths("src/retinue/store/locks.py", known)


def test_the_source_graph_follows_relative_imports_and_lists_of_names() -> None:
    tree = Tree(
        {
            "src/retinue/store/locks.py": "",
            "src/retinue/store/rows.py": "",
            "src/retinue/real.py": "",
            "src/retinue/store/runs.py": "from . import (\n  locks,  # a\n  rows as r,\n)\nfrom ..real import clock",
        }
    )

    assert tree.imports("src/retinue/store/runs.py") == {
        "src/retinue/store/locks.py",
        "src/retinue/store/rows.py",
        "src/retinue/real.py",
    }


def test_a_test_is_affected_by_a_migration_through_its_package() -> None:
    known = facts(
        {
            "src/retinue/store/migrations/__init__.py": "HEAD = '0001'",
            "src/retinue/store/migrations/versions/__init__.py": "",
            "src/retinue/store/migrations/versions/0001_first.py": "revision = '0001'",
            "tests/store/test_migrations.py": "from retinue.store.migrations import HEAD",
        }
    )

    assert ranked_paths("src/retinue/store/migrations/versions/0001_first.py", known) == [
        "tests/store/test_migrations.py"
    ]


def test_a_changed_conftest_affects_the_tests_that_use_its_fixtures() -> None:
    known = facts(
        {
            "tests/api/conftest.py": "import pytest\n\n@pytest.fixture\ndef rim(): ...\n",
            "tests/api/test_gate.py": "def test_e(rim): ...\n",
            "tests/api/test_static_files.py": "def test_f(): ...\n",
        }
    )

    assert ranked_paths("tests/api/conftest.py", known) == ["tests/api/test_gate.py"]


def test_a_changed_autouse_fixture_affects_every_test_of_its_folder() -> None:
    known = facts(
        {
            "tests/api/conftest.py": "import pytest\n\n@pytest.fixture(autouse=True)\ndef quiet(): ...\n",
            "tests/api/test_static_files.py": "def test_f(): ...\n",
        }
    )

    assert ranked_paths("tests/api/conftest.py", known) == ["tests/api/test_static_files.py"]


def test_a_changed_test_helper_affects_the_tests_that_import_it() -> None:
    assert ranked_paths("tests/flows/helpers.py", facts()) == ["tests/flows/test_first.py"]


def test_a_changed_data_file_affects_the_tests_that_name_it_or_import_its_reader() -> None:
    known = facts(
        {
            "src/retinue/store/locks.py": 'FILE = "locks.toml"',
            "tests/flows/test_toml.py": 'read("locks.toml")',
        }
    )

    assert ranked_paths("src/retinue/store/locks.toml", known)[0] == "tests/flows/test_toml.py"
    assert "tests/store/test_locks.py" in ranked_paths("src/retinue/store/locks.toml", known)
    assert "tests/policy/test_rules.py" not in ranked_paths("src/retinue/store/locks.toml", known)


def test_a_changed_documentation_page_affects_the_tests_of_the_documentation() -> None:
    known = facts({"tests/docs/test_errors.py": "", "tests/scripts/test_check_links.py": ""})

    assert ranked_paths("docs/start.md", known) == ["tests/docs/test_errors.py", "tests/scripts/test_check_links.py"]


def test_a_changed_generated_file_affects_the_test_of_the_generator() -> None:
    known = facts({"tests/scripts/test_generate.py": "", "tests/web/test_chat.py": ""})
    made = "// Made from the code by `make generate`.\n"

    assert [each.path for each in rank(Change("web/src/lib/operations.ts", made), known)] == [
        "tests/scripts/test_generate.py"
    ]


def test_a_changed_web_component_affects_the_tests_of_the_screens_that_import_it() -> None:
    known = facts(
        {
            "web/src/parts/Avatar.svelte": "<b>Face</b>",
            "web/src/screens/agents/Head.svelte": 'import Avatar from "../../parts/Avatar.svelte";',
            "web/src/screens/chat/Chat.svelte": "",
            "tests/web/test_agents.py": "",
            "tests/web/test_chat.py": "",
            "tests/web/test_navigation.py": 'find("Face")',
        }
    )

    assert ranked_paths("web/src/parts/Avatar.svelte", known) == [
        "tests/web/test_agents.py",
        "tests/web/test_navigation.py",
        "tests/web/test_chat.py",
    ]
    assert ranked_paths("web/src/screens/chat/Chat.svelte", known)[0] == "tests/web/test_chat.py"


def test_a_changed_build_file_affects_the_smoke_tests_with_a_note() -> None:
    selection = select([Change("pyproject.toml", "")], facts())

    assert picked_paths(selection) == ["tests/flows/test_first.py"]
    assert selection.notes == ("pyproject.toml can affect every test: one test file per part is picked",)


def test_the_smoke_test_files_among_the_affected_tests_exist() -> None:
    assert [path for path in SMOKE if not (affected.ROOT / path).is_file()] == []


def test_affected_tests_of_several_files_are_picked_in_turn_until_the_time_budget_is_spent() -> None:
    each_s = (BUDGET_S - START_S) * WORKERS / 2
    known = facts(
        {"src/retinue/policy/rules.py": "", "tests/policy/test_rules.py": "from retinue.policy import rules\n"},
        {path: min(each_s, LONG_S) for path in SOURCE_FILES},
    )
    changes = [Change("src/retinue/store/locks.py", LOCKS_SOURCE), Change("src/retinue/policy/rules.py", "")]
    budget_s = START_S + 2 * min(each_s, LONG_S) / WORKERS

    selection = select(changes, known, budget_s)

    assert picked_paths(selection) == ["tests/store/test_locks.py", "tests/policy/test_rules.py"]
    assert selection.left_out == ("tests/engine/test_claims.py", "tests/flows/test_first.py")
    assert selection.seconds == budget_s
    assert "2 more test files can be reached and are left out: `make test` runs them" in affected.description(
        changes, selection, is_full=False
    )


def test_a_changed_test_file_counts_as_affected_despite_the_time_budget() -> None:
    text = SOURCE_FILES["tests/policy/test_rules.py"]
    known = facts(seconds={"tests/policy/test_rules.py": 1000.0})

    assert picked_paths(select([Change("tests/policy/test_rules.py", text)], known)) == ["tests/policy/test_rules.py"]


LONG_TEST_SOURCE = """
from retinue.store.locks import take_lock

LIMIT = 1

def test_of_something_else(): ...

def test_of_taking():
    take_lock()

class TestInside:
    def test_of_more(self): ...
"""


def test_only_the_tests_that_use_the_changed_name_are_affected_in_a_long_file() -> None:
    known = facts({"tests/flows/test_long.py": LONG_TEST_SOURCE}, {"tests/flows/test_long.py": 2 * LONG_S})

    [pick] = [each for each in select([Change("src/retinue/store/locks.py", LOCKS_SOURCE)], known).picks if each.tests]

    assert pick.arguments == ("tests/flows/test_long.py::test_of_taking",)
    assert pick.seconds == pytest.approx(2 * LONG_S / 3)


def test_the_time_of_an_unmeasured_affected_test_file_is_estimated_by_its_number_of_tests() -> None:
    known = facts({"tests/flows/test_two.py": "def test_a(): ...\n\nasync def test_b(): ...\n"})

    assert seconds_of("tests/flows/test_two.py", known) == pytest.approx(2 * UNMEASURED_TEST_S)


def test_the_measured_seconds_of_a_long_affected_test_are_taken_into_account() -> None:
    seconds = {
        "tests/flows/test_long.py": 2 * LONG_S,
        "tests/flows/test_long.py::test_of_something_else": 2 * LONG_S - 2,
    }
    known = facts({"tests/flows/test_long.py": LONG_TEST_SOURCE}, seconds)

    [pick] = [each for each in select([Change("src/retinue/store/locks.py", LOCKS_SOURCE)], known).picks if each.tests]

    assert pick.tests == ("test_of_taking", "TestInside::test_of_more")


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        (9, ("tests/flows/test_long.py::test_of_taking",)),
        (12, ("tests/flows/test_long.py::TestInside::test_of_more",)),
        (4, ("tests/flows/test_long.py",)),
    ],
)
def test_in_a_long_changed_test_file_only_changed_tests_are_affected_if_possible(
    line: int, arguments: tuple[str, ...]
) -> None:
    known = facts({"tests/flows/test_long.py": LONG_TEST_SOURCE}, {"tests/flows/test_long.py": 2 * LONG_S})

    [pick] = select([Change("tests/flows/test_long.py", LONG_TEST_SOURCE, frozenset({line}))], known).picks

    assert pick.arguments == arguments


def test_the_pytest_command_for_affected_tests_uses_workers_and_plugins_only_if_useful() -> None:
    tree = Tree({"tests/test_a.py": "", "tests/test_fuzz.py": "import schemathesis"})
    short, long = (Selection((Pick("tests/test_a.py", "", seconds, ("test_b",)),)) for seconds in (1.0, 30.0))
    fuzz = Selection((Pick("tests/test_fuzz.py", "", 1.0),))

    assert affected.pytest_command(short, tree, ["-x"])[1:] == [
        *("-m", "pytest", "-q", "-W", "ignore::pytest.PytestAssertRewriteWarning"),
        *("-p", "no:schemathesis", "-x", "tests/test_a.py::test_b"),
    ]
    assert "--numprocesses" in affected.pytest_command(long, tree)
    assert "no:schemathesis" not in affected.pytest_command(fuzz, tree)


def test_the_source_graph_returns_the_defined_names_around_the_changed_lines() -> None:
    text = "LIMIT = 1\n\nclass Lock:\n    def take(self):\n        raise E('lock_held')\n    def drop(self): ...\n"

    assert defined_names(text) == {"LIMIT", "Lock", "take", "drop", "lock_held"}
    assert defined_names(text, {5}) == {"Lock", "take", "lock_held"}
    assert defined_names(text, {2}) == defined_names(text)


# --- with git ---


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of three commits: two files, then one of them with its test, then the other alone."""
    git(tmp_path, "init", "-q")
    commit(tmp_path, {"src/retinue/a.py": "one = 1\ntwo = 2\n", "src/retinue/b.py": "", "tests/test_a.py": ""})
    commit(tmp_path, {"src/retinue/a.py": "one = 1\ntwo = 3\n", "tests/test_a.py": "# more\n"})
    commit(tmp_path, {"src/retinue/b.py": "three = 3\n"})
    return tmp_path


def git(root: Path, *arguments: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *arguments], cwd=root, check=True, stdout=subprocess.DEVNULL)


def commit(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "change")


def test_in_a_clean_working_tree_the_last_commit_is_the_change_for_affected_tests(repository: Path) -> None:
    assert affected.changes_since(repository, None) == [Change("src/retinue/b.py", "three = 3\n", frozenset({1}))]


def test_uncommitted_new_changed_and_removed_files_are_the_change_for_affected_tests(repository: Path) -> None:
    (repository / "src/retinue/a.py").write_text("one = 1\ntwo = 4\n")
    (repository / "src/retinue/b.py").unlink()
    (repository / "new.txt").write_text("new")

    assert affected.changes_since(repository, None) == [
        Change("src/retinue/a.py", "one = 1\ntwo = 4\n", frozenset({2})),
        Change("src/retinue/b.py", None, frozenset({0})),
        Change("new.txt", "new"),
    ]


def test_the_change_for_affected_tests_has_the_commits_since_a_commit_and_the_working_tree(repository: Path) -> None:
    (repository / "new.txt").write_text("new")

    changes = affected.changes_since(repository, "HEAD~2")

    assert [change.path for change in changes] == [
        "src/retinue/a.py",
        "src/retinue/b.py",
        "tests/test_a.py",
        "new.txt",
    ]


def test_files_of_the_same_commit_count_as_changed_together_for_affected_tests(repository: Path) -> None:
    together = affected.changed_together(repository, "HEAD")

    assert together["src/retinue/a.py"]["tests/test_a.py"] > together["src/retinue/b.py"]["tests/test_a.py"] > 0


def test_files_and_changes_of_an_earlier_commit_are_read_for_affected_tests(repository: Path) -> None:
    known = affected.facts_of_commit(repository, "HEAD~1")

    assert known.tree.files["src/retinue/b.py"] == ""
    assert affected.changes_of_commit(repository, "HEAD~1") == [
        Change("src/retinue/a.py", "one = 1\ntwo = 3\n", frozenset({2})),
        Change("tests/test_a.py", "# more\n", frozenset({1})),
    ]


def test_the_printed_history_of_affected_tests_ends_with_the_median(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    affected.print_history(repository, 2, BUDGET_S)

    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4
    assert printed[-1].startswith("median ")


# --- durations of tests ---


def test_durations_are_summed_by_file_and_for_long_tests_by_test(tmp_path: Path) -> None:
    phases = [("tests/a.py::t[1]", 6.0), ("tests/a.py::t[2]", 5.0), ("tests/a.py::u", 0.5), ("tests/b.py::t", 2.0)]
    file = tmp_path / "tests" / "durations.toml"
    file.parent.mkdir()

    durations.write(file, durations.summed(phases))

    assert durations.read(file) == {"tests/a.py": 11.5, "tests/a.py::t": 11.0, "tests/b.py": 2.0}


def test_writing_test_durations_keeps_those_of_other_existing_test_files(tmp_path: Path) -> None:
    file = tmp_path / "tests" / "durations.toml"
    file.parent.mkdir()
    (tmp_path / "tests" / "b.py").touch()
    durations.write(file, {"tests/a.py": 20.0, "tests/a.py::t": 19.0, "tests/b.py": 2.0, "tests/gone.py": 3.0})

    durations.write(file, {"tests/a.py": 1.0})

    assert durations.read(file) == {"tests/a.py": 1.0, "tests/b.py": 2.0}


def test_a_pytest_run_with_the_durations_plugin_writes_durations(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile("def test_a(): ...")
    file = pytester.path / "durations.toml"
    monkeypatch.setattr(durations, "DURATIONS", file)

    pytester.inline_run("-p", "scripts.durations", "-p", "no:cacheprovider")

    [name] = durations.read(file)
    assert name.endswith(".py")
