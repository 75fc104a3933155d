"""The web app is built if it has changed, and every wheel contains it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts import build_web

ROOT = Path(__file__).parent.parent.parent


def test_the_web_app_is_not_built_again_from_unchanged_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_if_built(*_: str) -> None:
        pytest.fail("it was built again")

    build_web.build()
    monkeypatch.setattr(build_web, "_run", fail_if_built)
    build_web.build()


def test_a_change_of_any_web_source_changes_the_hash_of_the_web_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_without_node_the_web_app_is_skipped_if_allowed_and_no_wheel_is_built(tmp_path: Path) -> None:
    copy = _copy_checkout(tmp_path / "checkout")
    alone = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    build = [sys.executable, "scripts/build_web.py"]
    refused = subprocess.run(build, cwd=copy, env=alone, capture_output=True, text=True, check=False)
    assert refused.returncode == 1 and "Node" in refused.stderr and "try:" in refused.stderr
    done = subprocess.run([*build, "--if-possible"], cwd=copy, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "without it" in done.stderr
    wheel = _build_wheel(copy, tmp_path, alone)
    assert wheel.returncode != 0 and "Node" in wheel.stdout + wheel.stderr


def test_a_checkout_with_a_built_web_app_makes_a_wheel_without_node(tmp_path: Path) -> None:
    build_web.build()
    copy = _copy_checkout(tmp_path / "checkout")
    shutil.copytree(build_web.BUILT, copy / "src" / "retinue" / "_web")
    made = _build_wheel(copy, tmp_path, {"PATH": str(tmp_path), "HOME": str(tmp_path)})
    assert made.returncode == 0, made.stderr
    [wheel] = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "retinue/_web/index.html" in names and any(name.startswith("retinue/_web/assets/") for name in names)


def _copy_checkout(into: Path) -> Path:
    """Copy what a git checkout contains: the sources without build results."""
    left_out = shutil.ignore_patterns("node_modules", "_web", "__pycache__")
    for name in ("src", "web", "scripts"):
        shutil.copytree(ROOT / name, into / name, ignore=left_out)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, into / name)
    return into


def _build_wheel(root: Path, into: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(into), "."]
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
