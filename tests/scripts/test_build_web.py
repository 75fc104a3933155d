"""The page is built where it has changed, and no wheel goes without it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts import build_web

ROOT = Path(__file__).parent.parent.parent


def test_what_was_built_from_these_sources_is_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: str) -> None:
        pytest.fail("it was built again")

    build_web.build()
    monkeypatch.setattr(build_web, "_run", never)
    build_web.build()


def test_a_change_of_any_source_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "web" / "src").mkdir(parents=True)
    (tmp_path / "web" / "node_modules").mkdir()
    source = tmp_path / "web" / "src" / "main.ts"
    source.write_text("1")
    monkeypatch.setattr(build_web, "SOURCE", tmp_path / "web")
    first = build_web.hash_of_sources()
    (tmp_path / "web" / "node_modules" / "noise.js").write_text("1")
    assert build_web.hash_of_sources() == first
    source.write_text("2")
    assert build_web.hash_of_sources() != first


def test_a_checkout_without_node_opens_without_a_page_and_makes_no_wheel(tmp_path: Path) -> None:
    copy = _checkout(tmp_path / "checkout")
    alone = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    build = [sys.executable, "scripts/build_web.py"]
    refused = subprocess.run(build, cwd=copy, env=alone, capture_output=True, text=True, check=False)
    assert refused.returncode == 1 and "Node" in refused.stderr and "try:" in refused.stderr
    told = subprocess.run([*build, "--if-possible"], cwd=copy, env=alone, capture_output=True, text=True, check=False)
    assert told.returncode == 0 and "without it" in told.stderr
    wheel = _wheel(copy, tmp_path, alone)
    assert wheel.returncode != 0 and "Node" in wheel.stdout + wheel.stderr


def test_a_copy_with_the_page_makes_a_wheel_with_it_and_needs_no_node(tmp_path: Path) -> None:
    build_web.build()
    copy = _checkout(tmp_path / "checkout")
    shutil.copytree(build_web.BUILT, copy / "src" / "retinue" / "_web")
    made = _wheel(copy, tmp_path, {"PATH": str(tmp_path), "HOME": str(tmp_path)})
    assert made.returncode == 0, made.stderr
    [wheel] = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "retinue/_web/index.html" in names and any(name.startswith("retinue/_web/assets/") for name in names)


def _checkout(into: Path) -> Path:
    """What git would give: the sources, and nothing that was built."""
    left_out = shutil.ignore_patterns("node_modules", "_web", "__pycache__")
    for name in ("src", "web", "scripts"):
        shutil.copytree(ROOT / name, into / name, ignore=left_out)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, into / name)
    return into


def _wheel(root: Path, into: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(into), "."]
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
