"""The house as a service: a unit that systemd can read, and what to type."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.app.systemd_unit import build_installation, render_unit, user_unit_folder
from retinue.domain.errors import Invalid

ROOT = Path(__file__).parents[2]


def test_the_unit_we_ship_is_the_one_we_make() -> None:
    made = render_unit(
        command=("%h/.local/bin/retinue", "run"), data_dir="%h/.retinue", drain_s=10.0, keep_specifiers=True
    )
    assert (ROOT / "deploy" / "retinue.service").read_text() == made


def test_odd_paths_are_written_as_systemd_reads_them() -> None:
    text = render_unit(command=("/opt/my house/100%/$x/python", "-m", "retinue"), data_dir='/home/a "b"\\c', drain_s=0)
    assert 'ExecStart="/opt/my house/100%%/$$x/python" -m retinue\n' in text
    assert 'Environment="RETINUE_HOME=/home/a \\"b\\"\\\\c"\n' in text
    assert "TimeoutStopSec=20\n" in text
    with pytest.raises(Invalid):
        render_unit(command=("x",), data_dir="/home\n[Install]", drain_s=0)


def test_one_is_told_what_to_type() -> None:
    found = build_installation(
        command=("python", "-m", "retinue", "run"),
        printed_by=("python", "-m", "retinue.app.systemd_unit"),
        data_dir=Path("/home/maria/.retinue"),
        unit_folder=Path("/home/maria/my config/systemd/user"),
        drain_s=10,
    )
    assert found.path == Path("/home/maria/my config/systemd/user/retinue.service")
    assert (
        found.commands[1] == "python -m retinue.app.systemd_unit > '/home/maria/my config/systemd/user/retinue.service'"
    )
    assert found.commands[-2:] == ("systemctl --user enable --now retinue", "loginctl enable-linger")


def test_the_folder_of_units_is_where_systemd_looks() -> None:
    assert user_unit_folder({"XDG_CONFIG_HOME": "/x"}) == Path("/x/systemd/user")
    assert user_unit_folder({}) == Path("~/.config/systemd/user").expanduser()


def test_typed_it_prints_the_unit_alone_and_says_the_rest_beside_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "retinue.app.systemd_unit"],
        env={**os.environ, "RETINUE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("[Unit]\n")
    assert f"RETINUE_HOME={tmp_path}" in done.stdout
    assert "systemctl --user daemon-reload" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    path = tmp_path / "retinue.service"
    path.write_text(render_unit(command=(sys.executable, "-m", "retinue", "run"), data_dir=str(tmp_path), drain_s=10))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(path)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    told = [line for line in done.stderr.splitlines() if "retinue" in line]
    assert told == []


def test_the_container_is_not_run_by_root_and_keeps_everything_in_its_volume() -> None:
    lines = (ROOT / "Containerfile").read_text().splitlines()
    last = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM ")) :]
    assert "USER retinue" in last
    assert 'VOLUME ["/home/retinue/.retinue"]' in last
    assert any(line.startswith("HEALTHCHECK ") for line in last)
    assert all((ROOT / name).exists() for name in ("requirements/run.txt", "requirements/build.txt"))
