"""A local server with people and agents who perform operations with their own permissions."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from retinue.domain import address
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.person import Person, Role
from retinue.domain.principal import LEVEL_BY_ROLE, TRUST_BY_ROLE, Principal
from retinue.domain.protected_paths import ProtectedPaths
from retinue.domain.trust import Trust
from retinue.operations.base import Services, perform_operation
from retinue.operations.catalog import DEFAULT_PERMISSIONS, OPERATIONS
from retinue.store.agents import agents
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.store.people import people
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import text_reply
from retinue.tools.files import FileServices

ROLES = {"owner": Role.OWNER, "maria": Role.MEMBER, "noor": Role.MEMBER, "gus": Role.GUEST}


def person(name: str) -> Principal:
    role = ROLES[name]
    return Principal(address=address.person_address(name), level=LEVEL_BY_ROLE[role], trust=TRUST_BY_ROLE[role])


def agent(name: str, level: PermissionLevel = PermissionLevel.STANDARD) -> Principal:
    return Principal(address=address.agent_address(name), level=level, trust=Trust.AGENT)


@dataclass(slots=True)
class OperationsServer:
    server: LocalServer
    services: Services

    async def ask(self, who: Principal, operation: str, *, once: str = "", **parameters: Any) -> Any:
        body = json.dumps(parameters).encode()
        return json.loads(await perform_operation(self.services, who, OPERATIONS[operation], body, key=once))

    async def converse(self, who: Principal, text: str, *, to: str = "agent:ada", **kw: Any) -> tuple[str, str]:
        """Send an envelope and wait for the answer. Returns the ids of the envelope and the session."""
        sent = await self.ask(who, "envelope.send", to=to, text=text, **kw)
        await self.server.wait_for_outcome(sent["envelope"])
        return sent["envelope"], sent["session"]


@asynccontextmanager
async def open_operations_server(instance: LocalInstance) -> AsyncGenerator[OperationsServer]:
    instance.model.rule = lambda prompt: text_reply("ok")
    async with instance.run() as server:

        def settle_in(conn: Any) -> None:
            for name, role in ROLES.items():
                if people.find(conn, name) is None:
                    people.add(conn, Person(name=name, role=role), at_ms=1)
            if agents.find(conn, "bo") is None:
                agents.upsert(conn, Agent(name="bo", model="scripted"), source="test", at_ms=1)

        await server.store.write(settle_in, point="setup")
        server.engine.agent_changed("bo", 4)
        numbers = iter(range(1_000_000))
        files = AttachmentFiles(instance.root / "files")
        services = Services(
            store=server.store,
            intake=server.intake,
            engine=server.engine,
            event_broadcast=server.events,
            clock=instance.clock,
            ids=instance.ids,
            new_secret=lambda: f"secret-{next(numbers):037d}",
            data_dir=instance.root,
            attachment_files=files,
            zone=instance.zone,
            version="test",
            permission_policy=DEFAULT_PERMISSIONS,
            toolbox=instance.toolbox,
            file_services=FileServices(
                store=server.store,
                clock=instance.clock,
                files=files,
                withheld=ProtectedPaths(data_directory=instance.root),
            ),
        )
        yield OperationsServer(server, services)
