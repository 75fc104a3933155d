"""Reads a file and its trust, as the file tools do. For code that does not belong to a run, such as heartbeats."""

from __future__ import annotations

import asyncio
import os
from functools import partial

from retinue.agents.instruction_files import FILE_BYTES_MAX, ContentWithTrust
from retinue.domain.trust import least_trust
from retinue.store.agents import file_trust
from retinue.tools.files.file_services import FileServices
from retinue.tools.files.file_snapshot import read_snapshot_if_exists


async def read_with_trust(file_services: FileServices, path: str) -> ContentWithTrust | None:
    """Read a file and its trust, or return None if there is no file.

    If the path is a link, the lower trust of the link and the file applies.
    """
    real = await asyncio.to_thread(os.path.realpath, path)
    async with file_services.lock_file(real):
        found = await asyncio.to_thread(
            partial(read_snapshot_if_exists, real, text=os.path.basename(path), bytes_max=FILE_BYTES_MAX)
        )
        if found is None:
            return None
        trust = await file_services.trust_of(real, found)
        if real != path:
            made_ms = file_trust.ctime_ms(os.lstat(path))
            trust = least_trust(
                (trust, await file_services.store.read(partial(file_trust.get_trust, path=path, ctime_ms=made_ms)))
            )
        return ContentWithTrust(found.data, trust)
