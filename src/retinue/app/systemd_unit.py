"""Builds the systemd user unit of the server: its text, and the commands that install it.

`python -m retinue.app.systemd_unit` prints both and changes nothing.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct

from retinue.app.errors import UnitTextInvalid
from retinue.config import examine_configuration
from retinue.domain.errors import RetinueError

UNIT_NAME = "retinue"
STOP_MARGIN_S = 20.0


class UnitInstallation(Struct, frozen=True, kw_only=True):
    """A unit file, and the commands that install it."""

    path: Path  # of the unit file
    text: str
    commands: tuple[str, ...]  # to run in this order


def build_installation(
    *, command: Sequence[str], printed_by: Sequence[str], data_dir: Path, unit_folder: Path, drain_s: float
) -> UnitInstallation:
    """Return the unit for this data directory, and the commands that install and start it."""
    path = unit_folder / f"{UNIT_NAME}.service"
    return UnitInstallation(
        path=path,
        text=render_unit(command=command, data_dir=str(data_dir), drain_s=drain_s),
        commands=(
            f"mkdir -p {shlex.quote(str(unit_folder))}",
            f"{shlex.join(printed_by)} > {shlex.quote(str(path))}",
            "systemctl --user daemon-reload",
            f"systemctl --user enable --now {UNIT_NAME}",
            # Without it, the server would stop when its owner logs out, and start only when they log in.
            "loginctl enable-linger",
        ),
    )


def render_unit(*, command: Sequence[str], data_dir: str, drain_s: float, keep_specifiers: bool = False) -> str:
    """Return the text of the unit file. With `keep_specifiers`, systemd specifiers such as `%h` are not escaped."""
    quoted = partial(_quote_word, keep_specifiers=keep_specifiers)
    started = " ".join(quoted(word).replace("$", "$$") for word in command)
    return f"""\
[Unit]
Description=Retinue, a server for a team of AI agents
# Give up after five failed starts within a minute: a restart does not repair invalid settings.
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=exec
ExecStart={started}
ExecReload=/bin/kill -HUP $MAINPID
Environment={quoted(f"RETINUE_HOME={data_dir}")}
# Only the owner can read the files of the server.
UMask=0077
Restart=on-failure
RestartSec=2
# A stopping server waits for active runs. Runs that do not finish in time resume at the next start.
TimeoutStopSec={drain_s + STOP_MARGIN_S:g}
KillMode=mixed
# If a tool uses up the memory, the kernel kills the tool, and the server continues to run.
OOMPolicy=continue
LimitNOFILE=65536

[Install]
WantedBy=default.target
"""


def _quote_word(word: str, *, keep_specifiers: bool) -> str:
    """Quote a word as a systemd unit file requires."""
    if any(ord(char) < 32 for char in word):
        raise UnitTextInvalid
    text = word.replace("\\", "\\\\").replace('"', '\\"')
    if not keep_specifiers:
        text = text.replace("%", "%%")
    return f'"{text}"' if any(char in text for char in " '\"\\;") else text


def user_unit_folder(environment: Mapping[str, str]) -> Path:
    config = environment.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "systemd" / "user"


def main(arguments: list[str]) -> int:
    if arguments:
        sys.stderr.write("usage: python -m retinue.app.systemd_unit\n")
        return 2
    try:
        settings = examine_configuration(os.environ).configuration.settings
        found = build_installation(
            command=(sys.executable, "-m", "retinue", "run"),
            printed_by=(sys.executable, "-m", "retinue.app.systemd_unit"),
            data_dir=settings.home,
            unit_folder=user_unit_folder(os.environ),
            drain_s=settings.drain_s,
        )
    except RetinueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(found.text)
    commands = "\n".join(f"  {command}" for command in found.commands)
    sys.stderr.write(f"\nInstall the unit as {found.path} with these commands:\n{commands}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
