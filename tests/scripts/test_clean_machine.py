"""Each condition of the clean machine holds, checked by a small project with its own `.ci/run`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scripts import clean_machine

# It writes what it sees to a file outside the clone, because the clone is deleted afterwards.
RUN_SCRIPT = """#!/usr/bin/env python3
import json, os, pathlib, shutil, socket, sys, time

def reaches(address, family):
    with socket.socket(family) as opened:
        try:
            opened.bind((address, 0))
        except OSError:
            return False
    return True

umask = os.umask(0)
seen = {
    "args": os.environ["ARGS"],
    "home": sorted(os.listdir(os.environ["HOME"])),
    "cache": os.environ.get("XDG_CACHE_HOME"),
    "uv": shutil.which("uv"),
    "umask": umask,
    "mode": os.stat("tracked").st_mode & 0o777,
    "zone": time.tzname[0],
    "ipv4": reaches("127.0.0.1", socket.AF_INET),
    "ipv6": socket.has_ipv6 and reaches("::1", socket.AF_INET6),
    "secret": os.environ.get("SECRET"),
    "untracked": os.path.exists("untracked"),
    "fetched": os.path.exists(".venv/fetched"),
    "shared": os.path.exists("../shared/design.md"),
}
pathlib.Path("SEEN").write_text(json.dumps(seen))
sys.exit("fail" in os.environ["ARGS"])
"""
MAKEFILE = """
setup system web:
	mkdir -p .venv/bin && touch .venv/fetched
	printf '#!/bin/sh\\n' >.venv/bin/python && chmod +x .venv/bin/python
"""
needs_namespaces = pytest.mark.skipif(
    not clean_machine.has_namespaces(), reason="only root may give a process a network of its own"
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed project, a HOME with a file in it, and uv on PATH."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "design.md").touch()
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    for program in ("uv", "ours"):
        (home / "bin" / program).write_text("#!/bin/sh\n")
        (home / "bin" / program).chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{home / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SECRET", "ours")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    root = tmp_path / "project"
    (root / ".ci").mkdir(parents=True)
    (root / ".ci" / "run").write_text(RUN_SCRIPT.replace("SEEN", str(tmp_path / "seen.json")))
    (root / ".ci" / "run").chmod(0o755)
    (root / "Makefile").write_text(MAKEFILE)
    (root / "tracked").touch()
    (root / "tracked").chmod(0o644)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], cwd=root, check=True)
    (root / "untracked").touch()
    return root


def run_conditions(project: Path, *arguments: str) -> dict[str, Any]:
    assert clean_machine.main(arguments, project) == 0, [
        log.read_text() for log in (project / clean_machine.LOGS).iterdir()
    ]
    return json.loads((project.parent / "seen.json").read_text())


def test_a_clean_machine_condition_runs_in_a_clone_without_untracked_files_or_secrets(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = run_conditions(project, "no-cache", "--tests", "tests/api")

    assert seen["args"] == "tests/api"
    assert (seen["untracked"], seen["secret"], seen["shared"]) == (False, None, True)
    assert Path(seen["cache"]).name == "cache" and not Path(seen["cache"]).exists(), "it is deleted with the clone"
    assert (seen["home"], seen["uv"] is not None) == (["bin"], True), "these conditions differ"
    assert capsys.readouterr().out.endswith("no-cache: passed (no-cache)\n")


@needs_namespaces
def test_all_clean_machine_conditions_hold_at_once(project: Path) -> None:
    seen = run_conditions(project)

    assert (seen["home"], seen["uv"], seen["umask"], seen["mode"]) == ([], None, 0o077, 0o600)
    assert seen["zone"] in ("+1245", "CHAST")
    assert (seen["ipv4"], seen["ipv6"]) == (True, False)
    assert seen["fetched"], "the network is not available later"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("empty-home", {"home": []}),
        ("no-uv", {"uv": None}),
        ("umask", {"umask": 0o077, "mode": 0o600}),
        pytest.param("no-ipv6", {"ipv4": True, "ipv6": False}, marks=needs_namespaces),
    ],
)
def test_a_clean_machine_condition_can_be_run_alone(project: Path, condition: str, expected: dict[str, object]) -> None:
    seen = run_conditions(project, condition)

    assert {name: seen[name] for name in expected} == expected


def test_the_clean_machine_condition_without_uv_keeps_the_other_programs_on_the_path(
    project: Path, tmp_path: Path
) -> None:
    place = Path(clean_machine.without_uv(str(tmp_path / "home" / "bin"), tmp_path / "copy"))

    assert [program.name for program in place.iterdir()] == ["ours"]


def test_a_failed_clean_machine_condition_is_reported_and_the_other_conditions_still_run(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments: Sequence[str] = ["umask", "time-zone", "--tests", "fail"]
    assert clean_machine.main(arguments, project) == 1

    output = capsys.readouterr().out
    assert "umask: FAILED (umask)\n" in output and output.endswith("time-zone: FAILED (time-zone)\n")
    assert (project / clean_machine.LOGS / "time-zone.log").read_text().startswith("$ .ci/run\n")


def test_an_unknown_or_impossible_clean_machine_condition_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert clean_machine.main(["moonlight"], project) == 1
    assert "no condition 'moonlight'" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(project))
    assert clean_machine.main(["no-ipv6"], project) == 1
    assert "try: sudo" in capsys.readouterr().err


def test_the_clean_machine_conditions_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert clean_machine.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(clean_machine.CONDITIONS)
