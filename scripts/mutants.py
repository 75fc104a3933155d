"""`make mutants`: plant small defects one at a time, and count how many of them a test notices.

The defects are listed in tests/mutants.toml. Each is planted in a copy of the repository, never in
the working tree. The tests that `make affected` picks for its file then run, up to the first
failure. That test must pass without the defect, or it does not count. The results are kept in
build/mutants.json, so a stopped run can be continued.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from scripts import affected, durations
from scripts.affected_tests import BUDGET_S, WORKERS, Change, Facts, select
from scripts.mutation import Mutant, Site, choose, enum_members, locate, sites

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "mutants.toml"
RESULTS = ROOT / "build" / "mutants.json"

PACKAGES = {
    "store": ("store",),
    "engine": ("engine",),
    "policy": ("policy", "text"),
    "intake": ("intake", "outbox", "connectors/supervisor"),
    "models": ("models", "net"),
    "api": ("api",),
}
EACH = 11
SEED = 20
# Migrations, generators, code that only slow tests with another package run, and code outside the server.
SKIPPED = ("/migrations/", "/generate_", "/pydantic_ai_", "/local_server.py")
# A defect can make a test wait forever. Without a defect, no run of the picked tests takes this long.
LIMIT_S = 300.0
SUITE_LIMIT_S = 7200.0
FAILURES_TOGETHER_MAX = 20

FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - (.*))?$", re.MULTILINE)
HEADER = """\
# Small defects that the tests are to notice: `make mutants` plants them one at a time.
# Chosen once, with a fixed seed: .venv/bin/python -m scripts.mutants --choose
"""


@dataclass(frozen=True, slots=True)
class Result:
    """The result for one defect. `status` is killed, timeout, survived or missing. `test` is the
    test that noticed it, and `tests` the set that ran: `picked` or `suite`.
    """

    status: str
    test: str = ""
    reason: str = ""
    tests: str = "picked"
    seconds: float = 0.0


def main(arguments: list[str]) -> int:
    """Test the defects that have no result yet, and print a summary."""
    options = _options(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):  # so that the copy is removed, and the tests are ended
        signal.signal(number, lambda *_: sys.exit(1))
    commit = affected.git(ROOT, "rev-parse", "--verify", f"{options.at}^{{commit}}").strip()
    with copy_of(ROOT, commit) as copy:
        if options.choose:
            write_list(LIST, chosen_sites(copy))
            return 0
        mutants = read_list(LIST)[:: options.every]
        results = Results(RESULTS, commit)
        check = Check(copy, results, options.budget, options.limit)
        for number, mutant in enumerate(mutants, 1):
            if mutant.name not in results.of or options.again:
                _tell(number, len(mutants), mutant, check.run_picked(mutant))
        if options.survivors_full:
            survivors = [
                mutant
                for mutant in mutants
                if (results.of[mutant.name].status, results.of[mutant.name].tests) == ("survived", "picked")
            ]
            for number, (mutant, result) in enumerate(check.run_suite(survivors), 1):
                _tell(number, len(survivors), mutant, result)
    print(*summary(mutants, results.of), sep="\n")
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument(
        "--at", default="HEAD", metavar="REV", help="plant defects in this commit (default: %(default)s)"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="test only every Nth defect of the list")
    parser.add_argument("--survivors-full", action="store_true", help="then run the whole suite on the survivors")
    parser.add_argument("--again", action="store_true", help="also test defects that already have a result")
    parser.add_argument(
        "--budget", type=float, default=BUDGET_S, metavar="S", help="seconds of picked tests for each defect"
    )
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, metavar="S", help="seconds after which a test run times out"
    )
    parser.add_argument("--choose", action="store_true", help="choose new defects, and write the list")
    return parser.parse_args(arguments)


class Results:
    """The results of one commit, kept in a file with those of other commits."""

    def __init__(self, path: Path, commit: str) -> None:
        self._path = path
        self._commit = commit
        stored = self._stored().get(commit, {})
        self.of = {name: Result(**each) for name, each in stored.get("mutants", {}).items()}
        self.broken: list[str] = stored.get("broken", [])

    def keep(self, mutant: Mutant, result: Result) -> Result:
        """Store the result for a defect."""
        self.of[mutant.name] = result
        self.write()
        return result

    def write(self) -> None:
        """Write all results atomically."""
        mine = {"mutants": {name: asdict(each) for name, each in self.of.items()}, "broken": self.broken}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({**self._stored(), self._commit: mine}, indent=1))
        new.replace(self._path)

    def _stored(self) -> dict[str, Any]:
        return json.loads(self._path.read_text()) if self._path.is_file() else {}


class Check:
    """Plants defects in a copy of the repository, and runs the tests of the copy."""

    def __init__(self, copy: Path, results: Results, budget_s: float, limit_s: float) -> None:
        self._copy = copy
        self._results = results
        self._budget_s = budget_s
        self._limit_s = limit_s
        self._texts = source_texts(copy)
        self._members = enum_members(self._texts)
        seconds = durations.read(ROOT / "tests" / "durations.toml")
        facts = affected.facts_of_working_tree(copy)
        self._facts = Facts(facts.tree, seconds, facts.together)
        self._passing: set[str] = set()

    def run_suite(self, mutants: Sequence[Mutant]) -> Iterator[tuple[Mutant, Result]]:
        """Run the whole suite with many defects planted at once, which is faster than one run for each defect.

        Each test that fails is then run with each defect alone. The defects that it notices are
        removed, and the suite runs again.
        """
        left = [site for mutant in mutants if (site := locate(mutant, self._texts, self._members)) is not None]
        unsure: list[str] = []
        while left:
            # Two defects in one function could hide each other.
            planted = list({(site.mutant.file, site.mutant.within): site for site in left}.values())
            with self._planted(*planted):
                status, failed = self._pytest(
                    self._facts.tree.tests, SUITE_LIMIT_S, unsure, failures_max=FAILURES_TOGETHER_MAX
                )
            if status == "timeout":
                raise RuntimeError(f"the suite took more than {SUITE_LIMIT_S:.0f} s with {len(planted)} defects")
            found = {site.mutant.name: ("", "") for site in planted} if not failed else self._noticed(planted, failed)
            if not found:  # unsteady tests, or tests that fail only with several defects
                unsure += [test for test, _ in failed]
            for site in [site for site in planted if site.mutant.name in found]:
                test, reason = found[site.mutant.name]
                result = Result("killed" if test else "survived", test, reason[:300], "suite")
                yield site.mutant, self._results.keep(site.mutant, result)
                left.remove(site)

    def _noticed(self, planted: Sequence[Site], failed: Sequence[tuple[str, str]]) -> dict[str, tuple[str, str]]:
        """Find the defects that alone make one of the failed tests fail. Returns that test and its
        error by the name of the defect.
        """
        found: dict[str, tuple[str, str]] = {}
        for test, reason in failed:
            if not self._passes(test):
                self._results.broken.append(test)
                continue
            for site in planted:
                if site.mutant.name not in found and self._fails_again(site, test):
                    found[site.mutant.name] = (test, reason)
        return found

    def run_picked(self, mutant: Mutant) -> Result:
        """Run the tests that are picked for the file of a defect."""
        began = time.monotonic()
        site = locate(mutant, self._texts, self._members)
        if site is None:
            return self._results.keep(mutant, Result("missing"))
        status, test, reason = self._first_failure(site, self._picked(site), self._limit_s)
        seconds = round(time.monotonic() - began, 1)
        return self._results.keep(mutant, Result(status, test, reason[:300], "picked", seconds))

    def _first_failure(self, site: Site, arguments: Sequence[str], limit_s: float) -> tuple[str, str, str]:
        """Return the status of a defect, the test that noticed it, and the error. The test must
        fail each time, and only with the defect.
        """
        unsure: list[str] = []
        while True:
            with self._planted(site):
                status, failed = self._pytest(arguments, limit_s, unsure)
            if status != "killed":
                return status, "", ""
            if {test for test, _ in failed} <= {*unsure, *self._results.broken}:
                raise RuntimeError(f"these fail although they are left out: {failed}")
            for test, reason in failed:
                if not self._passes(test):
                    self._results.broken.append(test)
                elif self._fails_again(site, test):
                    return status, test, reason
                else:
                    unsure.append(test)

    def _picked(self, site: Site) -> list[str]:
        file = site.mutant.file
        selection = select([Change(file, self._texts[file])], self._facts, self._budget_s)
        return [argument for pick in selection.picks for argument in pick.arguments]

    @contextmanager
    def _planted(self, *planted: Site) -> Iterator[None]:
        texts = {site.mutant.file: self._texts[site.mutant.file] for site in planted}
        for site in sorted(planted, key=lambda each: each.start, reverse=True):  # earlier offsets stay valid
            texts[site.mutant.file] = site.planted(texts[site.mutant.file])
        for file, text in texts.items():
            _write_source(self._copy / file, text)
        try:
            yield
        finally:
            for file in texts:
                _write_source(self._copy / file, self._texts[file])

    def _passes(self, test: str) -> bool:
        """Whether a test passes without any defect. For a test file that could not be collected:
        whether it now can be.
        """
        if test not in self._passing and self._pytest(_alone(test), self._limit_s)[0] == "survived":
            self._passing.add(test)
        return test in self._passing

    def _fails_again(self, site: Site, test: str) -> bool:
        with self._planted(site):
            return self._pytest(_alone(test), self._limit_s)[0] != "survived"

    def _pytest(
        self, arguments: Sequence[str], limit_s: float, without: Sequence[str] = (), *, failures_max: int = 1
    ) -> tuple[str, list[tuple[str, str]]]:
        """Run tests up to `failures_max` failures. Returns the status of the defects, and the
        failed tests with their errors.
        """
        left_out = {*self._results.broken, *without}
        arguments = [each for each in arguments if each.partition("::")[0] not in left_out]
        if not arguments:
            return "survived", []
        deselected = [f"--deselect={test}" for test in sorted(left_out)]
        workers = ["-n", str(WORKERS), "--dist", "loadfile", "--no-loadscope-reorder"] if len(arguments) > 2 else []
        options = affected.options_for((each.partition("::")[0] for each in arguments), self._facts.tree)
        command = [
            "-m",
            "pytest",
            "-q",
            f"--maxfail={failures_max}",
            "--tb=no",
            "-rfE",
            "-p",
            "no:cacheprovider",
            *options,
            *workers,
        ]
        code, output = run_in(self._copy, [*command, *deselected, *arguments], limit_s)
        if code is None:
            return "timeout", []
        if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return "survived", []
        not_begun = (arguments[0].partition("::")[0], output.strip().rpartition("\n")[2])
        return "killed", FAILED.findall(output) or [not_begun]


@contextmanager
def copy_of(root: Path, commit: str) -> Iterator[Path]:
    """Make a copy of a commit in a temporary folder, with a separate virtual environment. It is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="retinue-mutants-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / "retinue"
        subprocess.run(["git", "clone", "--quiet", "--shared", "--no-checkout", root, copy], check=True)
        subprocess.run(["git", "checkout", "--quiet", "--detach", commit], cwd=copy, check=True)
        if (root / "src/retinue/_web").is_dir():
            shutil.copytree(root / "src/retinue/_web", copy / "src/retinue/_web")
        beside = root.resolve().parent / "shared"  # recorded replies that tests of the model clients read
        if beside.is_dir():
            (copy.parent / "shared").symlink_to(beside)
        make_environment(copy)
        run_in(copy, ["-m", "compileall", "-q", "-j", str(WORKERS), "src"], SUITE_LIMIT_S)
        yield copy


def make_environment(copy: Path) -> None:
    """Make a virtual environment with the packages of the current one, and with retinue from the copy."""
    venv.create(copy / ".venv", with_pip=False, symlinks=True)
    packages = [path for path in sys.path if path.endswith("site-packages")]
    [site_packages] = (copy / ".venv").glob("lib/python*/site-packages")
    (site_packages / "retinue-copy.pth").write_text("\n".join([str(copy / "src"), *packages]) + "\n")
    program = copy / ".venv" / "bin" / "retinue"
    program.write_text(f"#!{copy}/.venv/bin/python\nimport sys\nfrom retinue.cli.main import main\nsys.exit(main())\n")
    program.chmod(0o755)


def run_in(copy: Path, arguments: Sequence[str], limit_s: float) -> tuple[int | None, str]:
    """Run Python in a copy, and return its exit code and output. If it exceeds the limit, it is
    killed with all that it started, and the code is None.
    """
    environment = {**os.environ, "VIRTUAL_ENV": str(copy / ".venv")}
    environment.pop("PYTHONPATH", None)
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [copy / ".venv" / "bin" / "python", *arguments],
            cwd=copy,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        output.seek(0)
        return code, output.read()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def source_texts(root: Path) -> dict[str, str]:
    """Return the text of each module of retinue, by its path."""
    paths = sorted((root / "src" / "retinue").rglob("*.py"))
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def is_in(path: str, folders: Iterable[str]) -> bool:
    """Whether a file is in one of these folders of retinue."""
    return any(path.startswith(f"src/retinue/{folder}/") for folder in folders)


def chosen_sites(copy: Path) -> list[Site]:
    """Choose places for the list: the same number in each package, and only defects with which the
    module can be imported.
    """
    texts = source_texts(copy)
    members = enum_members(texts)
    found = {
        package: [
            site
            for path, text in texts.items()
            if is_in(path, folders) and not any(skipped in path for skipped in SKIPPED)
            for site in sites(path, text, members)
        ]
        for package, folders in PACKAGES.items()
    }
    return choose(found, EACH, SEED, lambda site: can_be_imported(copy, site, texts[site.mutant.file]))


def can_be_imported(copy: Path, site: Site, text: str) -> bool:
    """Whether the module still compiles and can be imported with the defect."""
    path = copy / site.mutant.file
    module = site.mutant.file.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    _write_source(path, site.planted(text))
    code, _ = run_in(copy, ["-c", f"import {module}"], LIMIT_S)
    _write_source(path, text)
    return code == 0


def write_list(path: Path, chosen: Sequence[Site]) -> None:
    """Write the defects to the list file."""
    entries = [
        "[[mutant]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in asdict(site.mutant).items())
        for site in chosen
    ]
    path.write_text(HEADER + "\n" + "\n".join(entries))


def read_list(path: Path) -> list[Mutant]:
    """Read the defects from the list file."""
    return [Mutant(**each) for each in tomllib.loads(path.read_text())["mutant"]]


def summary(mutants: Sequence[Mutant], results: dict[str, Result]) -> Iterator[str]:
    """Yield the defects that survived or are missing, then how many were noticed, by package and in total."""
    for mutant in mutants:
        if results[mutant.name].status in ("survived", "missing"):
            yield f"{results[mutant.name].status}: {mutant.name}"
    for package, folders in PACKAGES.items():
        own = [results[each.name] for each in mutants if is_in(each.file, folders)]
        if own:
            yield f"{package:<9} {_count(own)}"
    yield f"mutants: {_count([results[mutant.name] for mutant in mutants])}"


def _count(results: Sequence[Result]) -> str:
    counts = Counter(result.status for result in results)
    noticed = counts["killed"] + counts["timeout"]
    more = ", ".join(f"{counts[status]} {status}" for status in ("timeout", "survived", "missing") if counts[status])
    return f"{noticed} of {len(results)} noticed" + (f" ({more})" if more else "")


def _tell(number: int, count: int, mutant: Mutant, result: Result) -> None:
    by = f" by {result.test}" if result.test else ""
    print(
        f"{number}/{count} {mutant.name}\n    {result.status}{by} ({result.tests} tests, {result.seconds} s)",
        flush=True,
    )


def _alone(test: str) -> list[str]:
    return [test] if "::" in test else ["--collect-only", test]


def _write_source(path: Path, text: str) -> None:
    """Write a module, and remove its bytecode. Python would not notice new text of the same
    length that was written within the same second.
    """
    path.write_text(text, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
