"""Build the web app if its sources have changed: `make web`, `make run` and every build of a wheel run this script.

It needs only the standard library. A hash of the sources is stored with the build, so that a copy
of the repository without Node can tell whether the build is current.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "web"
BUILT = ROOT / "src" / "retinue" / "_web"
STAMP = BUILT / ".built"
INSTALLED = SOURCE / "node_modules" / ".installed"
NODE_MIN = (20, 19)


class CannotBuild(Exception):
    pass


def hash_of_sources() -> str:
    """Return a hash of the names and contents of all source files of the web app."""
    digest = hashlib.sha256()
    for path in sorted(SOURCE.rglob("*")):
        name = path.relative_to(SOURCE)
        if path.is_file() and name.parts[0] != "node_modules":
            digest.update(f"{name.as_posix()}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def is_current() -> bool:
    return STAMP.is_file() and (BUILT / "index.html").is_file() and STAMP.read_text() == hash_of_sources()


def build() -> None:
    """Build the web app if it is not current. Raises `CannotBuild` with the reason."""
    if is_current():
        return
    npm = shutil.which("npm")
    if npm is None or _node() < NODE_MIN:
        raise CannotBuild(
            f"building the web app needs Node {NODE_MIN[0]}.{NODE_MIN[1]} or newer, and there is none on PATH"
        )
    wanted = hash_of_sources()
    lock = hashlib.sha256((SOURCE / "package-lock.json").read_bytes()).hexdigest()
    if not INSTALLED.is_file() or INSTALLED.read_text() != lock:
        _run(npm, "ci", "--no-audit", "--no-fund")
        INSTALLED.write_text(lock)
    _run(npm, "run", "build", "--silent")
    STAMP.write_text(wanted)


def _node() -> tuple[int, int]:
    node = shutil.which("node")
    if node is None:
        return 0, 0
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    major, minor = (said.strip().removeprefix("v") + ".0.0").split(".")[:2]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


def _run(npm: str, *arguments: str) -> None:
    done = subprocess.run(
        [npm, *arguments], cwd=SOURCE, env={**os.environ, "CI": "1"}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CannotBuild(f"npm {' '.join(arguments)} failed:\n{(done.stdout + done.stderr).strip()[-4000:]}")


def main() -> int:
    try:
        build()
    except CannotBuild as error:
        if "--if-possible" in sys.argv:
            print(f"note: {error}; the server starts without it", file=sys.stderr)
            return 0
        print(f"error: {error}\ntry: install Node 20, then `make web`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
