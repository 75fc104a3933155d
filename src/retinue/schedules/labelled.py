"""A file with its label, as the file tools would have it: for whoever reads one outside of a run."""

from __future__ import annotations

import asyncio
import os
from functools import partial

from retinue.agents.instruction_files import FILE_BYTES_MAX, Looked
from retinue.tools.files.ground import Ground
from retinue.tools.files.looking import look_if_there


async def look_for(ground: Ground, real: str) -> Looked | None:
    async with ground.alone_with(real):
        found = await asyncio.to_thread(
            partial(look_if_there, real, text=os.path.basename(real), bytes_max=FILE_BYTES_MAX)
        )
        return Looked(found.data, await ground.trust_of(real, found)) if found is not None else None
