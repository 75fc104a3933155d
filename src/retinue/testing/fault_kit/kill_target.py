"""The process that `kill_cases` kills: `python -m retinue.testing.fault_kit.kill_target PEER FOLDER AT TASK...`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from retinue.connectors.base import Connector, InboundMessage
from retinue.domain.envelope import Receipt
from retinue.testing.fault_kit.harness import CONNECTOR_NAME, build_context
from retinue.testing.fault_kit.kill_cases import JOURNAL_FILE, REACHED_FILE
from retinue.testing.fault_kit.kit_server import IntakeFault, KitServer, build_part
from retinue.testing.fault_kit.peer_registry import create_peer

LIFETIME_S_MAX = 300.0  # by then, the process that should have killed this one is gone, too


class FileKitServer(KitServer):
    """A test server that writes its commits to disk, as the real server does."""

    folder: Path
    intake_fault: IntakeFault

    async def accept(self, message: InboundMessage) -> Receipt | None:
        if self.intake_fault is IntakeFault.DIES_AFTER:
            kept = {"channel": message.channel, "message_id": message.message_id, "text": message.text}
            with (self.folder / JOURNAL_FILE).open("a") as journal:
                journal.write(json.dumps({**kept, "revision": message.revision}) + "\n")
                journal.flush()
                os.fsync(journal.fileno())
        (self.folder / REACHED_FILE).touch()
        await asyncio.sleep(LIFETIME_S_MAX)  # sleep: until it is killed
        raise AssertionError("the process was not killed")


async def main(factory: str, folder: Path, addresses: str, task: str, *rest: str) -> None:
    bench = create_peer(factory)
    reach = {name: (str(host), int(port)) for name, (host, port) in json.loads(addresses).items()}
    connector = bench.create_connector(build_context(folder, bench), reach)
    server = FileKitServer()
    server.folder = folder
    server.intake_fault = IntakeFault(rest[0]) if task == "listen" else IntakeFault.FAILS_BEFORE
    async with asyncio.timeout(LIFETIME_S_MAX):
        if task == "listen":
            await server.listen_forever(connector)
        else:
            await _send(server, connector, *rest)


async def _send(server: KitServer, connector: Connector, channel: str, text: str, number: str) -> None:
    listening = asyncio.create_task(server.listen_forever(connector))
    await server.send(connector, build_part(CONNECTOR_NAME, channel, text, number=int(number)))
    await listening


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
