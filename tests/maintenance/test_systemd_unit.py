"""The server as a systemd service: a valid unit file, and the commands to install it."""

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


def test_the_shipped_systemd_unit_equals_the_rendered_one() -> None:
    made = render_unit(
        command=("%h/.local/bin/retinue", "run"), data_dir="%h/.retinue", drain_s=10.0, keep_specifiers=True
    )
    assert (ROOT / "deploy" / "retinue.service").read_text() == made


def test_special_characters_in_paths_are_escaped_for_systemd() -> None:
    text = render_unit(command=("/opt/my server/100%/$x/python", "-m", "retinue"), data_dir='/home/a "b"\\c', drain_s=0)
    assert 'ExecStart="/opt/my server/100%%/$$x/python" -m retinue\n' in text
    assert 'Environment="RETINUE_HOME=/home/a \\"b\\"\\\\c"\n' in text
    assert "TimeoutStopSec=20\n" in text
    with pytest.raises(Invalid):
        render_unit(command=("x",), data_dir="/home\n[Install]", drain_s=0)


def test_the_systemd_installation_lists_the_commands_to_run() -> None:
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


def test_the_systemd_unit_folder_follows_xdg_config_home() -> None:
    assert user_unit_folder({"XDG_CONFIG_HOME": "/x"}) == Path("/x/systemd/user")
    assert user_unit_folder({}) == Path("~/.config/systemd/user").expanduser()


def test_the_systemd_command_prints_the_unit_to_stdout_and_the_commands_to_stderr(tmp_path: Path) -> None:
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
def test_systemd_analyze_accepts_the_rendered_unit(tmp_path: Path) -> None:
    path = tmp_path / "retinue.service"
    path.write_text(render_unit(command=(sys.executable, "-m", "retinue", "run"), data_dir=str(tmp_path), drain_s=10))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(path)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    warnings = [line for line in done.stderr.splitlines() if "retinue" in line]
    assert warnings == []


def test_the_containerfile_does_not_run_the_server_as_root_and_declares_a_volume() -> None:
    lines = (ROOT / "Containerfile").read_text().splitlines()
    last = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM ")) :]
    assert "USER retinue" in last
    assert 'VOLUME ["/home/retinue/.retinue"]' in last
    assert any(line.startswith("HEALTHCHECK ") for line in last)
    assert all((ROOT / name).exists() for name in ("requirements/run.txt", "requirements/build.txt"))
