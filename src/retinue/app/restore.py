"""Restores a backup while no server is running. It takes the instance lock, so that no server can start meanwhile.

`python -m retinue.app.restore FOLDER` restores the instance in `RETINUE_HOME`.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path

from retinue.app.clock_and_ids import RealClock
from retinue.app.errors import RestoreUnsupported
from retinue.app.instance_files import instance_lock
from retinue.config import Settings, examine_configuration
from retinue.domain.errors import RetinueError
from retinue.domain.times import to_ms
from retinue.store.maintenance import backup


def restore(settings: Settings, folder: Path, *, now: datetime) -> Path:
    """Replace the instance with the backup in `folder`. Returns the folder to which the old files were moved.

    Raises an error if a server is running, if the backup is incomplete, or if its ledger is inconsistent. In these
    cases, nothing is changed.
    """
    if isinstance(settings.store, str):
        raise RestoreUnsupported
    with instance_lock(settings.home):
        label = f"{now:%Y-%m-%dT%H-%M-%S}Z"
        return backup.restore(folder, data_dir=settings.home, store=settings.store, now_ms=to_ms(now), label=label)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m retinue.app.restore FOLDER\n")
        return 2
    try:
        # Invalid settings are reported when the server starts. They may be the reason for the restore.
        settings = examine_configuration(os.environ).configuration.settings
        before = restore(settings, Path(arguments[0]).absolute(), now=RealClock().now())
    except RetinueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"restored: {settings.home}\nprevious files: {before}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
