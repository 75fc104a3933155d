"""A house with a desk, and people and agents who ask things of it, each with rights of their own."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from retinue.domain import address
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.permission import ProtectedPaths
from retinue.domain.person import Person, Role
from retinue.domain.principal import LEVEL_BY_ROLE, TRUST_BY_ROLE, Principal
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
class DeskHouse:
    house: LocalServer
    desk: Services

    async def ask(self, who: Principal, operation: str, *, once: str = "", **parameters: Any) -> Any:
        body = json.dumps(parameters).encode()
        return json.loads(await perform_operation(self.desk, who, OPERATIONS[operation], body, key=once))

    async def converse(self, who: Principal, text: str, *, to: str = "agent:ada", **kw: Any) -> tuple[str, str]:
        """Send, wait for the answer; give the envelope and the session."""
        sent = await self.ask(who, "envelope.send", to=to, text=text, **kw)
        await self.house.wait_for_outcome(sent["envelope"])
        return sent["envelope"], sent["session"]


@asynccontextmanager
async def desk_house(household: LocalInstance) -> AsyncGenerator[DeskHouse]:
    household.model.rule = lambda prompt: text_reply("ok")
    async with household.run() as house:

        def settle_in(conn: Any) -> None:
            for name, role in ROLES.items():
                if people.find(conn, name) is None:
                    people.add(conn, Person(name=name, role=role), at_ms=1)
            if agents.find(conn, "bo") is None:
                agents.upsert(conn, Agent(name="bo", model="scripted"), source="test", at_ms=1)

        await house.store.write(settle_in, point="setup")
        house.engine.agent_changed("bo", 4)
        numbers = iter(range(1_000_000))
        files = AttachmentFiles(household.root / "files")
        desk = Services(
            store=house.store,
            intake=house.intake,
            engine=house.engine,
            event_broadcast=house.events,
            clock=household.clock,
            ids=household.ids,
            new_secret=lambda: f"secret-{next(numbers):037d}",
            data_dir=household.root,
            attachment_files=files,
            zone=household.zone,
            version="test",
            permission_policy=DEFAULT_PERMISSIONS,
            toolbox=household.toolbox,
            file_access=FileServices(
                store=house.store,
                clock=household.clock,
                files=files,
                withheld=ProtectedPaths(data_directory=household.root),
            ),
        )
        yield DeskHouse(house, desk)
