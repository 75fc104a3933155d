"""`make steady`: run the tests repeatedly under load, and print each test whose outcome is not always the same.

A round has three parts: all tests in random order without load; the same with one busy process per
core; and the tests that write to the disk, with a slow disk. The results are kept in build/steady,
so that `--resume` continues on another day.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from scripts.slow_disk import NoSlowDisk, slow_disk  # noqa: E402

RESULTS = Path("build", "steady")
ON_DISK = ("tests/store", "tests/engine", "tests/contracts", "tests/flows", "tests/crash")
PART_LIMIT_S = 6 * 3600.0  # ends a hang that no test's own limit ended
STOP_LIMIT_S = 60.0
WHOLE = (0, 1)  # pytest's exit statuses of a run that reached its end: all passed, some failed

# The folders of the product. Between the rounds of one selection, only tests and code that only tests use may change.
PRODUCT = ("src", "web", "requirements")
NOT_PRODUCT = frozenset({"__pycache__", "_web", "node_modules", "testing"})

GOOD = frozenset({"passed", "skipped"})
WORDS = {"retried": "passed only when retried"}
BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(1_000_000))\n"


@dataclass(frozen=True, slots=True)
class Part:
    """One way to run the tests. `folders` are run if no tests are named; empty means all tests."""

    name: str
    workers: int
    folders: tuple[str, ...] = ()
    is_busy: bool = False
    has_slow_disk: bool = False


PARTS = (
    Part("quiet", workers=2),
    Part("busy", workers=2, is_busy=True),
    Part("slow-disk", workers=1, folders=ON_DISK, has_slow_disk=True),
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of one test."""

    outcome: str
    message: str = ""


@dataclass(slots=True)
class PartResult:
    """The results of one part of one round."""

    round: int
    part: str
    seed: int
    product: str
    revision: str
    attempts: dict[str, list[Attempt]] = field(default_factory=dict[str, list[Attempt]])
    exit_status: int | None = None

    @property
    def is_whole(self) -> bool:
        return self.exit_status in WHOLE

    @property
    def name(self) -> str:
        return f"round {self.round}, {self.part}"

    def outcome_of(self, test: str) -> str:
        """Return the worst outcome of a test in this part. A test that failed in its teardown has failed."""
        seen = {attempt.outcome for attempt in self.attempts[test]}
        return next((outcome for outcome in ("failed", "retried", "passed") if outcome in seen), "skipped")

    def message_of(self, test: str) -> str:
        return next((attempt.message for attempt in self.attempts[test] if attempt.message), "")


# --- the results on disk ---


def read_result(path: Path) -> PartResult | None:
    """Read the results that a part wrote. Returns None if it never began."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = list(_records(lines))
    if not records:
        return None
    result = PartResult(**records[0])
    for record in records[1:]:
        if "exit_status" in record:
            result.exit_status = record["exit_status"]
        else:
            result.attempts.setdefault(record["test"], []).append(Attempt(record["outcome"], record["message"]))
    return result


def _records(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            yield json.loads(line)
        except json.JSONDecodeError:  # the run was killed while it wrote its last line
            return


def fingerprint(root: Path) -> str:
    """Return a hash of everything that is tested: the product, and the versions of its dependencies."""
    digest = sha256()
    for path in sorted(path for folder in PRODUCT for path in (root / folder).rglob("*")):
        name = path.relative_to(root)
        if path.is_file() and not NOT_PRODUCT.intersection(name.parts):
            digest.update(f"{name}\0{sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def revision_of(root: Path) -> str:
    """Return the commit that was tested, with `+` if there were uncommitted changes."""
    if (git := shutil.which("git")) is None:
        return "unknown"
    command = [git, "describe", "--always", "--dirty=+", "--exclude=*"]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


# --- running ---


@dataclass(frozen=True, slots=True)
class Steady:
    """Runs rounds of one selection of tests."""

    root: Path
    paths: tuple[str, ...]
    rounds: int
    parts: tuple[Part, ...]
    seed: int

    @property
    def folder(self) -> Path:
        """The folder of the results. Each selection of tests has a separate folder, so that running
        one file does not affect the results of all."""
        name = "-".join(path.strip("/").replace("/", ".") for path in self.paths) or "all"
        return self.root / RESULTS / (name if len(name) < 100 else sha256(name.encode()).hexdigest()[:16])

    def path_of(self, round_: int, part: str) -> Path:
        return self.folder / f"{round_}-{part}.jsonl"

    def forget(self, rounds: Iterable[int]) -> None:
        for round_ in rounds:
            for path in self.folder.glob(f"{round_}-*.*"):
                path.unlink()

    def run(self) -> list[PartResult]:
        """Run the parts that have not yet run to their end on this product, and return all results."""
        product, revision = fingerprint(self.root), revision_of(self.root)
        planned = [(round_, part) for round_ in range(1, self.rounds + 1) for part in self.parts]
        results: list[PartResult] = []
        for number, (round_, part) in enumerate(planned):
            path = self.path_of(round_, part.name)
            known = read_result(path)
            if known is None or not known.is_whole or known.product != product:
                fresh = PartResult(round_, part.name, self.seed + number, product, revision)
                known = self._run_part(part, fresh, path)
            print(line_about(known), flush=True)
            results.append(known)
            if known.exit_status is None or known.exit_status == 2:  # it was interrupted
                break
        return results

    def _run_part(self, part: Part, begun: PartResult, path: Path) -> PartResult:
        path.parent.mkdir(parents=True, exist_ok=True)
        header = {name: getattr(begun, name) for name in ("round", "part", "seed", "product", "revision")}
        path.write_text(json.dumps(header) + "\n", encoding="utf-8")
        log = path.with_suffix(".log")
        print(f"{begun.name}: seed {begun.seed}, log {log.relative_to(self.root)}", flush=True)
        command = pytest_command(part, begun.seed, path, self.paths or part.folders)
        with strained(part) as environment, log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=self.root, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            wait_for(process)
        result = read_result(path)
        assert result is not None, "the header was written above"
        return result


def pytest_command(part: Part, seed: int, outcomes: Path, paths: Sequence[str]) -> list[str]:
    """Return the command that runs the tests of a part, in the order that the seed determines."""
    return [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--retry-real"),
        # With `=`: before pytest knows an option, it takes the word that follows for a path.
        *(f"--order-seed={seed}", f"--outcomes={outcomes}"),
        *("--numprocesses", str(part.workers), "--dist", "loadfile", "--no-loadscope-reorder"),
        *paths,
    ]


def wait_for(process: subprocess.Popen[bytes]) -> None:
    """Wait until the tests end. End them if they take far too long, or if this process is interrupted."""
    try:
        process.wait(timeout=PART_LIMIT_S)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(timeout=STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def strained(part: Part) -> Generator[Mapping[str, str]]:
    """Apply the load of a part during the block, and yield the environment variables for its tests."""
    busy = [busy_process() for _ in range(os.cpu_count() or 1)] if part.is_busy else []
    try:
        if part.has_slow_disk:
            with slow_disk() as environment:
                yield environment
        else:
            yield os.environ
    finally:
        for process in busy:
            process.kill()
            process.wait()


def busy_process() -> subprocess.Popen[bytes]:
    """Start a process that keeps one core busy. It ends soon after this process, even if this process is killed."""
    return subprocess.Popen([sys.executable, "-c", BUSY, str(os.getpid())])


# --- what came out ---


def line_about(result: PartResult) -> str:
    counted = Counter(result.outcome_of(test) for test in result.attempts)
    found = ", ".join(f"{counted[outcome]} {outcome}" for outcome in sorted(counted)) or "no tests"
    whole = "" if result.is_whole else f"; INCOMPLETE (pytest's exit status: {result.exit_status})"
    return f"{result.name}: seed {result.seed}, revision {result.revision}: {found}{whole}"


def unsteady_tests(results: Sequence[PartResult]) -> dict[str, list[PartResult]]:
    """Return the tests that failed, passed only when retried, or had different outcomes, with the
    parts in which they ran."""
    seen: defaultdict[str, list[PartResult]] = defaultdict(list)
    for result in results:
        for test in result.attempts:
            seen[test].append(result)
    return {test: parts for test, parts in sorted(seen.items()) if is_unsteady(part.outcome_of(test) for part in parts)}


def is_unsteady(outcomes: Iterable[str]) -> bool:
    """Whether these outcomes of one test differ, or one of them is bad."""
    distinct = set(outcomes)
    return len(distinct) > 1 or not distinct <= GOOD


def report(results: Sequence[PartResult]) -> list[str]:
    """Return lines for each unsteady test: its unusual outcomes, each with the command that repeats it."""
    lines: list[str] = []
    for test, parts in unsteady_tests(results).items():
        lines.append(f"unsteady: {test}")
        good = Counter(outcome for part in parts if (outcome := part.outcome_of(test)) in GOOD)
        usual, times = good.most_common(1)[0] if good else ("", 0)
        for part in parts:
            outcome = part.outcome_of(test)
            if outcome != usual:
                words = WORDS.get(outcome, outcome)
                lines.append(f"  {part.name}: {words}: {part.message_of(test)}".rstrip(": "))
                lines.append(f"    repeat: {repeat_command(part, test)}")
        if times:
            lines.append(f"  in the other parts: {times} {usual}")
    return lines


def repeat_command(part: PartResult, test: str) -> str:
    """Return the command that runs the test's file in the same order and under the same load."""
    file = test.partition("::")[0]
    return f"make steady ARGS={shlex.quote(f'--rounds 1 --only {part.part} --seed {part.seed} {file}')}"


# --- the command ---


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Run the rounds, print what is unsteady, and return 1 if a test is unsteady or a part did not run to its end."""
    asked = _parser().parse_args(arguments)
    steady = Steady(
        root=root,
        paths=tuple(asked.paths),
        rounds=asked.rounds,
        parts=tuple(part for part in PARTS if asked.only in (None, part.name)),
        seed=random.randrange(1_000_000) if asked.seed is None else asked.seed,
    )
    if asked.again is not None:
        steady.forget([asked.again])
    elif not asked.resume:
        shutil.rmtree(steady.folder, ignore_errors=True)
    try:
        results = steady.run()
    except NoSlowDisk as missing:
        print(missing, file=sys.stderr)
        return 1
    print(*report(results), sep="\n")
    unsteady, whole = len(unsteady_tests(results)), sum(result.is_whole for result in results)
    planned = steady.rounds * len(steady.parts)
    print(f"steady: {whole} of {planned} parts ran to completion, {unsteady} unsteady tests")
    return 0 if whole == planned and not unsteady else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make steady", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", help="files or folders; default: all tests")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="number of rounds; default: 3")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the first part's order; default: a random one")
    parser.add_argument("--only", choices=[part.name for part in PARTS], help="run one part of each round")
    parser.add_argument(
        "--resume", action="store_true", help="keep the parts that ran to completion, if only tests have changed since"
    )
    parser.add_argument("--again", type=int, metavar="ROUND", help="like --resume, but run this round again")
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
