"""The systemd user unit of the server: its text, and the commands that install it.

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

from retinue.config import examine
from retinue.domain.errors import Invalid, RetinueError

NAME = "retinue"
STOP_S_BEYOND_DRAIN = 20.0


class Installation(Struct, frozen=True, kw_only=True):
    """A unit file, and the commands that install it."""

    path: Path  # of the unit file
    text: str
    commands: tuple[str, ...]  # to run in this order


def installation(
    *, command: Sequence[str], printed_by: Sequence[str], home: Path, units: Path, drain_s: float
) -> Installation:
    """Return the unit for this data directory, and the commands that install and start it."""
    path = units / f"{NAME}.service"
    return Installation(
        path=path,
        text=unit(command=command, home=str(home), drain_s=drain_s),
        commands=(
            f"mkdir -p {shlex.quote(str(units))}",
            f"{shlex.join(printed_by)} > {shlex.quote(str(path))}",
            "systemctl --user daemon-reload",
            f"systemctl --user enable --now {NAME}",
            # Without it, the server would stop when its owner logs out, and start only when they log in.
            "loginctl enable-linger",
        ),
    )


def unit(*, command: Sequence[str], home: str, drain_s: float, specifiers: bool = False) -> str:
    """Return the text of the unit. With `keep_specifiers`, `%h` and the like stay systemd specifiers."""
    quoted = partial(_quoted, specifiers=specifiers)
    started = " ".join(quoted(word).replace("$", "$$") for word in command)
    return f"""\
[Unit]
Description=Retinue, a staff of AI agents
# Settings that cannot be used will not become usable by trying again and again.
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=exec
ExecStart={started}
ExecReload=/bin/kill -HUP $MAINPID
Environment={quoted(f"RETINUE_HOME={home}")}
# What the house writes is its owner's alone.
UMask=0077
Restart=on-failure
RestartSec=2
# A stop waits for what is running. What is still running after that is taken up at the next start.
TimeoutStopSec={drain_s + STOP_S_BEYOND_DRAIN:g}
KillMode=mixed
# A tool that takes all memory is ended, and the house goes on.
OOMPolicy=continue
LimitNOFILE=65536

[Install]
WantedBy=default.target
"""


def _quoted(word: str, *, specifiers: bool) -> str:
    """Quote a word as systemd expects it."""
    if any(ord(char) < 32 for char in word):
        raise Invalid(
            "this cannot be written into a unit",
            because="it holds a line break or another control character",
            try_this="choose another RETINUE_HOME",
            code="service.unwritable",
        )
    text = word.replace("\\", "\\\\").replace('"', '\\"')
    if not specifiers:
        text = text.replace("%", "%%")
    return f'"{text}"' if any(char in text for char in " '\"\\;") else text


def units_folder(environment: Mapping[str, str]) -> Path:
    config = environment.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "systemd" / "user"


def main(arguments: list[str]) -> int:
    if arguments:
        sys.stderr.write("usage: python -m retinue.app.systemd_unit\n")
        return 2
    try:
        settings = examine(os.environ).configuration.settings
        found = installation(
            command=(sys.executable, "-m", "retinue", "run"),
            printed_by=(sys.executable, "-m", "retinue.app.systemd_unit"),
            home=settings.home,
            units=units_folder(os.environ),
            drain_s=settings.drain_s,
        )
    except RetinueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(found.text)
    typed = "\n".join(f"  {command}" for command in found.commands)
    sys.stderr.write(f"\nThe unit goes to {found.path}. Type:\n{typed}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
