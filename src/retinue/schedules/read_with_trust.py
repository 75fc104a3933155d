"""Reads a file with its trust, as the file tools do, for code outside of a run."""

from __future__ import annotations

import asyncio
import os
from functools import partial

from retinue.agents.instruction_files import FILE_BYTES_MAX, Looked
from retinue.domain.trust import least
from retinue.store.agents import file_trust
from retinue.tools.files.file_access import Ground
from retinue.tools.files.file_snapshot import look_if_there


async def look_for(ground: Ground, path: str) -> Looked | None:
    """Read a file and its trust. For a link, the trust of the link counts too: its author chose the file."""
    real = await asyncio.to_thread(os.path.realpath, path)
    async with ground.alone_with(real):
        found = await asyncio.to_thread(
            partial(look_if_there, real, text=os.path.basename(path), bytes_max=FILE_BYTES_MAX)
        )
        if found is None:
            return None
        trust = await ground.trust_of(real, found)
        if real != path:
            made_ms = file_trust.ctime_ms(os.lstat(path))
            trust = least((trust, await ground.store.read(partial(file_trust.label, path=path, ctime_ms=made_ms))))
        return Looked(found.data, trust)
