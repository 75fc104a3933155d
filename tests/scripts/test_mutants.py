"""Mutants: where they are made, that they are located again, and when one counts as killed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import mutants
from scripts.mutation import OPERATORS, Mutant, choose, enum_members, locate, sites

MEMBERS = {"State": ("OPEN", "DONE")}


def planted(body: str) -> set[tuple[str, str]]:
    """Return each mutation of a function with this body: its operator and the mutated body."""
    head = "def f():\n    "
    text = head + body.replace("\n", "\n    ")
    return {
        (site.mutant.operator, site.planted(text).removeprefix(head).replace("\n    ", "\n"))
        for site in sites("a.py", text, MEMBERS)
    }


@pytest.mark.parametrize(
    ("body", "operator", "defect"),
    [
        ("if a:\n    b", "negate", "if not (a):\n    b"),
        ("[x for x in y if x]", "negate", "[x for x in y if not (x)]"),
        ("match a:\n    case 1 if b: c", "negate", "match a:\n    case 1 if not (b): c"),
        ("x = a <= b", "boundary", "x = a < b"),
        ("x = a > b", "boundary", "x = a >= b"),
        ("x = a and b", "and_or", "x = a or b"),
        ("x = 'é' or b", "and_or", "x = 'é' and b"),
        ("await page.commit()", "drop_call", "pass"),
        ("raise Refused('no')", "drop_raise", "pass"),
        ("self.x = 1", "drop_assignment", "pass"),
        ("x += 1", "drop_assignment", "pass"),
        ("return rows", "return_none", "return None"),
        ("x = rows[0]", "off_by_one", "x = rows[1]"),
        ("x = State.DONE", "other_member", "x = State.OPEN"),
        ("q.where(a == 1, b == 2)", "drop_where", "q.where(b == 2)"),
        (
            "x = 'UPDATE runs SET a = 1 WHERE id = :id AND epoch = :epoch'",
            "drop_where",
            "x = 'UPDATE runs SET a = 1 WHERE id = :id'",
        ),
    ],
)
def test_each_mutation_operator_makes_its_defect(body: str, operator: str, defect: str) -> None:
    assert (operator, defect) in planted(body)


def test_every_mutation_operator_is_listed() -> None:
    text = "def f():\n    if a and b < 1:\n        c(); self.d = State.OPEN\n        raise E\n    return q.where(x, y)"

    assert {site.mutant.operator for site in sites("a.py", text, MEMBERS)} == set(OPERATORS)


@pytest.mark.parametrize(
    "text",
    [
        "LIMIT = 1\nif LIMIT > 2: pass",
        "def f(a=1): ...",
        "def f():\n    '''if a > 1'''",
        "def f():\n    log.info('x', 1)",
        "def f():\n    wait(timeout=3)",
        "if TYPE_CHECKING:\n    def f():\n        g()",
        "class P(Protocol):\n    def f(self):\n        g()",
        "class A:\n    def __repr__(self):\n        return f'{1}'",
        "@overload\ndef f():\n    g()",
        "def f():\n    x: Literal[1]",
        "def f():\n    return None",
    ],
)
def test_code_that_no_test_needs_to_notice_is_not_mutated(text: str) -> None:
    assert sites("a.py", text, {}) == []


def test_enum_members_are_read_for_mutations() -> None:
    text = "class State(StrEnum):\n    OPEN = 'o'\n    DONE = 'd'\n    def f(self): ...\nclass B(Other):\n    C = 1\n"

    assert enum_members({"a.py": text}) == {"State": ("OPEN", "DONE")}


TEXT = "class A:\n    def f(self):\n        if a:\n            x()\n        if a:\n            y()\n"
SECOND_MUTANT = Mutant("src/retinue/store/a.py", "A.f", "negate", "if a:", 2)


def test_a_mutant_is_located_after_its_lines_moved() -> None:
    moved = TEXT.replace("    def f", "    def g(self):\n        if a:\n            z()\n\n    def f")

    site = locate(SECOND_MUTANT, {SECOND_MUTANT.file: moved}, {})

    assert site is not None
    assert site.planted(moved) == moved.replace("if a:\n            y()", "if not (a):\n            y()")


def test_a_mutant_is_located_in_another_file_if_it_is_the_only_match() -> None:
    site = locate(SECOND_MUTANT, {"src/retinue/store/new.py": TEXT}, {})

    assert site is not None
    assert site.mutant.file == "src/retinue/store/new.py"
    assert locate(SECOND_MUTANT, {"src/retinue/store/new.py": TEXT, "src/retinue/store/b.py": TEXT}, {}) is None


def test_a_mutant_whose_line_is_gone_is_not_located() -> None:
    assert (
        locate(SECOND_MUTANT, {SECOND_MUTANT.file: TEXT.replace("if a:\n            y", "if b:\n            y")}, {})
        is None
    )


def test_the_choice_of_mutants_is_deterministic_and_balanced_by_package() -> None:
    function = "def f{0}():\n    if a < {0}:\n        b()\n    return c\n"
    found = {
        package: [
            site
            for number in range(4)
            for site in sites(f"{package}/{number}.py", function.format(number) + function.format(number + 10), {})
        ]
        for package in ("store", "engine")
    }

    chosen = choose(found, 5, 1, lambda site: site.mutant.operator != "negate")

    assert chosen == choose(found, 5, 1, lambda site: site.mutant.operator != "negate")
    assert chosen != choose(found, 5, 2, lambda site: site.mutant.operator != "negate")
    assert [site.mutant.file.partition("/")[0] for site in chosen] == ["store"] * 5 + ["engine"] * 5
    assert len({(site.mutant.file, site.mutant.within) for site in chosen}) == 10
    assert len({site.mutant.operator for site in chosen[:4]}) == 4
    assert "negate" not in {site.mutant.operator for site in chosen}


def test_a_written_list_of_mutants_is_read_back(tmp_path: Path) -> None:
    found = sites("a.py", 'def f():\n    if a == "\\n":\n        b()\n', {})

    mutants.write_list(tmp_path / "mutants.toml", found)

    assert mutants.read_list(tmp_path / "mutants.toml") == [site.mutant for site in found]


def test_at_least_sixty_listed_mutants_are_located_and_each_package_has_ten() -> None:
    listed = mutants.read_list(mutants.LIST)
    texts = mutants.source_texts(mutants.ROOT)
    members = enum_members(texts)

    assert len([mutant for mutant in listed if locate(mutant, texts, members) is not None]) >= 60
    shares = [sum(mutants.is_in(each.file, folders) for each in listed) for folders in mutants.PACKAGES.values()]
    assert min(shares) >= 10


# --- in a small repository ---

SOURCE = """
def larger(one, other):
    if one > other:
        return one
    return other


def noted(notes):
    notes.append("seen")
    return True


def ends():
    n = 3
    while n > 0:
        n -= 1
    return n
"""
TESTS = """
import pathlib
from retinue.store.a import ends, larger, noted

def test_broken():
    assert not pathlib.Path(__file__).with_name("broken").exists()

def test_larger():
    assert larger(2, 1) == 2

def test_noted():
    assert noted([])

def test_ends():
    assert ends() == 0
"""
FILE = "src/retinue/store/a.py"
KILLED = Mutant(FILE, "larger", "negate", "if one > other:")
SURVIVING = Mutant(FILE, "noted", "drop_call", 'notes.append("seen")')
HANGS = Mutant(FILE, "ends", "drop_assignment", "n -= 1")
GONE = Mutant(FILE, "smaller", "negate", "if one < other:")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module, and a test file that notices some of its mutants."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the tests need no plugins, and start faster
    root = tmp_path / "repository"
    files = {
        FILE: SOURCE,
        "src/retinue/__init__.py": "",
        "src/retinue/store/__init__.py": "",
        "tests/store/test_a.py": TESTS,
        "pytest.ini": "[pytest]\n",
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    commit_all(root)
    return root


def commit_all(root: Path) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)
    subprocess.run(["git", *who, "commit", "-q", "-m", "change"], cwd=root, check=True)


def run(repository: Path, mutant: Mutant, tmp_path: Path, limit_s: float = 120.0) -> mutants.Result:
    results = mutants.Results(tmp_path / "results.json", "one")
    with mutants.copy_of(repository, "HEAD") as copy:
        result = mutants.Check(copy, results, 60.0, limit_s).run_picked(mutant)
        assert (copy / FILE).read_text() == SOURCE
    assert not copy.exists()
    assert (repository / FILE).read_text() == SOURCE
    assert mutants.Results(tmp_path / "results.json", "one").of == {mutant.name: result}
    assert mutants.Results(tmp_path / "results.json", "another").of == {}
    return result


def test_a_mutant_that_a_test_notices_is_killed(repository: Path, tmp_path: Path) -> None:
    result = run(repository, KILLED, tmp_path)

    assert (result.status, result.test) == ("killed", "tests/store/test_a.py::test_larger")


def test_a_mutant_that_no_test_notices_survives(repository: Path, tmp_path: Path) -> None:
    assert run(repository, SURVIVING, tmp_path).status == "survived"


def test_a_mutant_that_makes_a_test_hang_is_a_timeout(repository: Path, tmp_path: Path) -> None:
    assert run(repository, HANGS, tmp_path, limit_s=1.0).status == "timeout"  # time limit: it is tested


def test_a_mutant_that_is_not_located_is_missing(repository: Path, tmp_path: Path) -> None:
    assert run(repository, GONE, tmp_path).status == "missing"


def test_a_test_that_fails_without_the_mutant_does_not_count(repository: Path, tmp_path: Path) -> None:
    (repository / "tests/store/broken").touch()
    commit_all(repository)

    assert run(repository, SURVIVING, tmp_path).status == "survived"
    assert mutants.Results(tmp_path / "results.json", "one").broken == ["tests/store/test_a.py::test_broken"]


def test_a_test_that_fails_once_with_the_mutant_but_not_again_does_not_count(repository: Path, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    unsteady = f"""
def test_unsteady():
    was_there = pathlib.Path({str(flag)!r}).exists()
    pathlib.Path({str(flag)!r}).touch()
    assert was_there
"""
    (repository / "tests/store/test_a.py").write_text(TESTS + unsteady)
    commit_all(repository)

    assert run(repository, SURVIVING, tmp_path).status == "survived"
    assert mutants.Results(tmp_path / "results.json", "one").broken == []


def test_a_test_file_with_an_import_error_without_the_mutant_does_not_count(repository: Path, tmp_path: Path) -> None:
    (repository / "tests/store/test_a.py").write_text("import no_such_module\n" + TESTS)
    commit_all(repository)

    assert run(repository, KILLED, tmp_path).status == "survived"


def test_surviving_mutants_are_run_together_against_the_whole_suite(repository: Path, tmp_path: Path) -> None:
    other = Mutant(FILE, "larger", "boundary", "if one > other:")
    with mutants.copy_of(repository, "HEAD") as copy:
        check = mutants.Check(copy, mutants.Results(tmp_path / "results.json", "one"), 0.0, 120.0)
        found = dict(check.run_suite([SURVIVING, KILLED, other, GONE]))
        assert (copy / FILE).read_text() == SOURCE

    assert {mutant: (result.status, result.test, result.tests) for mutant, result in found.items()} == {
        KILLED: ("killed", "tests/store/test_a.py::test_larger", "suite"),
        SURVIVING: ("survived", "", "suite"),
        other: ("survived", "", "suite"),
    }


def test_a_mutant_that_breaks_the_import_of_its_module_is_rejected(repository: Path, tmp_path: Path) -> None:
    text = "def f():\n    return 1\n\nX = f() + 1\n"
    (repository / FILE).write_text(text)
    [off_by_one, none] = sorted(sites(FILE, text, {}), key=lambda site: site.mutant.operator)
    mutants.make_environment(repository)

    assert mutants.can_be_imported(repository, off_by_one, text)
    assert not mutants.can_be_imported(repository, none, text)


def test_the_mutant_summary_counts_by_package_and_names_survivors() -> None:
    other = Mutant("src/retinue/api/b.py", "f", "negate", "if a:")
    results = {
        KILLED.name: mutants.Result("killed"),
        SURVIVING.name: mutants.Result("survived"),
        HANGS.name: mutants.Result("timeout"),
        other.name: mutants.Result("missing"),
    }

    assert list(mutants.summary([KILLED, SURVIVING, HANGS, other], results)) == [
        f"survived: {SURVIVING.name}",
        f"missing: {other.name}",
        "store     2 of 3 noticed (1 timeout, 1 survived)",
        "api       0 of 1 noticed (1 missing)",
        "mutants: 2 of 4 noticed (1 timeout, 1 survived, 1 missing)",
    ]
