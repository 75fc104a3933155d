"""`make clean-machine`: run `.ci/run` in a fresh clone, as on a machine that has never seen the project.

Without names, one run has all conditions at once. With names, each condition has a separate run.
A run takes over from this machine only what is needed to find programs and to fetch packages.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOGS = Path("build", "clean-machine")
ALL = "all"
CONDITIONS = {
    "empty-home": "HOME is an empty folder",
    "no-cache": "pip, npm and everything else that keeps a cache start with an empty one",
    "no-uv": "there is no uv on PATH",
    "umask": "new files are inaccessible to all other users (umask 077)",
    "time-zone": "the local time differs from UTC by hours and minutes (TZ=Pacific/Chatham)",
    "no-ipv6": "loopback has no IPv6, and there is no other network while the tests run (needs root)",
}
UMASK = 0o077
ZONE = "Pacific/Chatham"
# Variables that a run takes over: those of the terminal, of package sources and of trusted certificates.
KEPT = ("CI", "LANG", "LOGNAME", "TERM", "USER", "SSL_CERT_DIR", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")
KEPT += ("REQUESTS_CA_BUNDLE", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
KEPT += ("PIP_CERT", "PIP_DEFAULT_TIMEOUT", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_INDEX_URL")
# These commands fetch everything first, because the tests then run without a network.
FETCH = (
    ("make", "setup", "system", "web"),
    (
        ".venv/bin/python",
        "-c",
        "import sys; sys.path.insert(0, 'tests')\nfrom connectors.telegram_peer import *\ninstalled()",
    ),
)
LOOPBACK_ONLY = 'ip link set lo up && ip -6 addr flush dev lo && exec "$@"'


class NotPossible(Exception):
    """This machine cannot provide a condition. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The surroundings of one run. `folder` contains the clone and everything that the conditions need."""

    folder: Path
    conditions: frozenset[str]
    environment: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def clone(self) -> Path:
        return self.folder / "project"

    def run(self, command: Sequence[str], log: Path, more: Mapping[str, str] | None = None) -> bool:
        """Run a command in the clone, and append what it prints to the log."""
        with log.open("ab") as output:
            output.write(f"$ {' '.join(command)}\n".encode())
            output.flush()
            done = subprocess.run(
                command,
                cwd=self.clone,
                env={**self.environment, **(more or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                umask=UMASK if "umask" in self.conditions else -1,
                check=False,
            )
        return done.returncode == 0

    def try_out(self, tests: str, log: Path) -> bool:
        """Run `.ci/run` under the conditions. Returns whether it passed."""
        if "no-ipv6" not in self.conditions:
            return self.run([".ci/run"], log, {"ARGS": tests})
        alone = ["unshare", "--net", "sh", "-c", LOOPBACK_ONLY, "sh", ".ci/run"]
        return all(self.run(command, log) for command in FETCH) and self.run(alone, log, {"ARGS": tests})


@contextmanager
def clean_machine(root: Path, conditions: Iterable[str], *, keep: bool = False) -> Generator[Machine]:
    """Make a clone of the last commit, with a link to `../shared` beside it if that exists. The
    clone is removed at the end, unless `keep` is true.
    """
    machine = Machine(Path(tempfile.mkdtemp(prefix="retinue-clean-")), frozenset(conditions))
    try:
        for name in ("home", "cache", "bin"):
            (machine.folder / name).mkdir()
        if (shared := root.parent / "shared").is_dir():
            (machine.folder / "shared").symlink_to(shared)
        machine.environment.update(environment_of(machine.folder, machine.conditions))
        subprocess.run(
            ["git", "clone", "--quiet", "--no-hardlinks", str(root), str(machine.clone)],
            check=True,
            umask=UMASK if "umask" in machine.conditions else -1,
        )
        yield machine
    finally:
        if not keep:
            shutil.rmtree(machine.folder, ignore_errors=True)


def environment_of(folder: Path, conditions: frozenset[str]) -> dict[str, str]:
    """Return the environment variables of a run: only those needed to find installed programs and to fetch packages."""
    home = Path(os.environ.get("HOME", "/"))
    made = {name: os.environ[name] for name in KEPT if name in os.environ}
    made |= {"HOME": str(home), "PATH": os.environ.get("PATH", os.defpath)}
    for variable, path in (("PIP_CONFIG_FILE", ".config/pip/pip.conf"), ("npm_config_userconfig", ".npmrc")):
        if (home / path).is_file():
            made[variable] = str(home / path)
    # A link to this Python itself: the `python3` that a version manager puts on PATH needs the caller's HOME.
    (folder / "bin" / "python3").symlink_to(Path(sys.executable).resolve())
    places = made["PATH"].split(os.pathsep)
    if "no-uv" in conditions:
        places = [without_uv(place, folder / "bin" / str(number)) for number, place in enumerate(places)]
    made["PATH"] = os.pathsep.join([str(folder / "bin"), *places])
    if "empty-home" in conditions:
        made["HOME"] = str(folder / "home")
    if "no-cache" in conditions:
        cache = str(folder / "cache")
        made |= {"XDG_CACHE_HOME": cache, "npm_config_cache": f"{cache}/npm", "PIP_NO_CACHE_DIR": "1"}
    if "time-zone" in conditions:
        made["TZ"] = ZONE
    return made


def without_uv(place: str, copy: Path) -> str:
    """Return a folder of PATH. If it contains uv, return a new folder with links to everything else in it."""
    if not (Path(place) / "uv").exists():
        return place
    copy.mkdir()
    for program in Path(place).iterdir():
        if program.name not in ("uv", "uvx"):
            (copy / program.name).symlink_to(program)
    return str(copy)


def has_namespaces() -> bool:
    """Whether we may start a process in a separate network namespace."""
    if not shutil.which("unshare") or not shutil.which("ip"):
        return False
    return subprocess.run(["unshare", "--net", "ip", "link", "set", "lo", "up"], check=False).returncode == 0


def refuse_the_impossible(conditions: Collection[str]) -> None:
    """Raise `NotPossible` if this machine cannot provide one of these conditions."""
    if unknown := set(conditions) - set(CONDITIONS):
        raise NotPossible(f"error: there is no condition {sorted(unknown)[0]!r}\ntry: make clean-machine ARGS=--list")
    if "no-ipv6" in conditions and not has_namespaces():
        raise NotPossible(
            "error: a loopback without IPv6 needs root, unshare and ip\n"
            "try: sudo apt-get install -y util-linux iproute2 && sudo make clean-machine"
        )


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Print which runs passed, and return 1 if one did not."""
    asked = _parser().parse_args(arguments)
    if asked.list:
        print(*(f"{name:<12} {text}" for name, text in CONDITIONS.items()), sep="\n")
        return 0
    runs = {name: [name] for name in asked.conditions} or {ALL: list(CONDITIONS)}
    try:
        refuse_the_impossible([name for names in runs.values() for name in names])
    except NotPossible as impossible:
        print(impossible, file=sys.stderr)
        return 1
    (root / LOGS).mkdir(parents=True, exist_ok=True)
    outcomes: list[bool] = []
    for name, conditions in runs.items():
        log = root / LOGS / f"{name}.log"
        log.write_text("")
        print(f"{name}: started, log {log.relative_to(root)}", flush=True)
        with clean_machine(root, conditions, keep=asked.keep) as machine:
            outcomes.append(machine.try_out(asked.tests, log))
            where = f", clone kept in {machine.clone}" if asked.keep else ""
        print(f"{name}: {'passed' if outcomes[-1] else 'FAILED'} ({', '.join(conditions)}){where}", flush=True)
    return 0 if all(outcomes) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make clean-machine", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("conditions", nargs="*", metavar="NAME", help="default: all of them in one run")
    parser.add_argument("--list", action="store_true", help="list the conditions")
    parser.add_argument("--tests", default="", metavar="PATHS", help="run only these tests")
    parser.add_argument("--keep", action="store_true", help="keep the clone")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
