"""The process that `kill_cases` kills: `python -m retinue.testing.fault_kit.kill_target PEER FOLDER AT TASK...`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from retinue.connectors.base import Connector, Incoming
from retinue.domain.envelope import Receipt
from retinue.testing.fault_kit.harness import INSTANCE, surroundings_in
from retinue.testing.fault_kit.kill_cases import JOURNAL, REACHED
from retinue.testing.fault_kit.kit_server import House, Mishap, parcel_to
from retinue.testing.fault_kit.peer_registry import made

LONG_S = 300.0  # by then, the process that was to kill this one is gone itself


class FileHouse(House):
    """A server whose commits are on disk, as those of the real one."""

    folder: Path
    mishap: Mishap

    async def accept(self, incoming: Incoming) -> Receipt | None:
        if self.mishap is Mishap.DIES_AFTER:
            kept = {"room": incoming.room, "message_id": incoming.message_id, "text": incoming.text}
            with (self.folder / JOURNAL).open("a") as journal:
                journal.write(json.dumps({**kept, "revision": incoming.revision}) + "\n")
                journal.flush()
                os.fsync(journal.fileno())
        (self.folder / REACHED).touch()
        await asyncio.sleep(LONG_S)  # sleep: until it is killed
        raise AssertionError("nobody killed us")


async def main(made_by: str, folder: Path, at: str, task: str, *rest: str) -> None:
    bench = made(made_by)
    reach = {name: (str(host), int(port)) for name, (host, port) in json.loads(at).items()}
    connector = bench.connector(surroundings_in(folder, bench), reach)
    house = FileHouse()
    house.folder = folder
    house.mishap = Mishap(rest[0]) if task == "listen" else Mishap.FAILS_BEFORE
    async with asyncio.timeout(LONG_S):
        if task == "listen":
            await house.keep_listening(connector)
        else:
            await _send(house, connector, *rest)


async def _send(house: House, connector: Connector, room: str, text: str, number: str) -> None:
    listening = asyncio.create_task(house.keep_listening(connector))
    await house.send(connector, parcel_to(INSTANCE, room, text, number=int(number)))
    await listening


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
