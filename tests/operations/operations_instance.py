"""A house with a desk, and people and agents who ask things of it, each with rights of their own."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from retinue.domain import address
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.permission import Withheld
from retinue.domain.person import Person, Role
from retinue.domain.principal import LEVEL_OF, TRUST_OF, Principal
from retinue.domain.trust import Trust
from retinue.operations.base import Desk, perform
from retinue.operations.catalog import OPERATIONS, POLICY
from retinue.store.agents import agents
from retinue.store.envelopes.attachment_files import Files
from retinue.store.people import people
from retinue.testing.local_instance import House, Household
from retinue.testing.scripted_model import says
from retinue.tools.files import Ground

ROLES = {"owner": Role.OWNER, "maria": Role.MEMBER, "noor": Role.MEMBER, "gus": Role.GUEST}


def person(name: str) -> Principal:
    role = ROLES[name]
    return Principal(address=address.person(name), level=LEVEL_OF[role], trust=TRUST_OF[role])


def agent(name: str, level: PermissionLevel = PermissionLevel.STANDARD) -> Principal:
    return Principal(address=address.agent(name), level=level, trust=Trust.AGENT)


@dataclass(slots=True)
class DeskHouse:
    house: House
    desk: Desk

    async def ask(self, who: Principal, operation: str, *, once: str = "", **parameters: Any) -> Any:
        body = json.dumps(parameters).encode()
        return json.loads(await perform(self.desk, who, OPERATIONS[operation], body, key=once))

    async def converse(self, who: Principal, text: str, *, to: str = "agent:ada", **kw: Any) -> tuple[str, str]:
        """Send, wait for the answer; give the envelope and the session."""
        sent = await self.ask(who, "envelope.send", to=to, text=text, **kw)
        await self.house.outcome(sent["envelope"])
        return sent["envelope"], sent["session"]


@asynccontextmanager
async def desk_house(household: Household) -> AsyncGenerator[DeskHouse]:
    household.model.rule = lambda prompt: says("ok")
    async with household.open() as house:

        def settle_in(conn: Any) -> None:
            for name, role in ROLES.items():
                if people.find(conn, name) is None:
                    people.add(conn, Person(name=name, role=role), at_ms=1)
            if agents.find(conn, "bo") is None:
                agents.put(conn, Agent(name="bo", model="scripted"), source="test", at_ms=1)

        await house.store.write(settle_in, point="setup")
        house.engine.agent_changed("bo", 4)
        numbers = iter(range(1_000_000))
        files = Files(household.root / "files")
        desk = Desk(
            store=house.store,
            post=house.inbox,
            engine=house.engine,
            live=house.live,
            clock=household.clock,
            ids=household.ids,
            secrets=lambda: f"secret-{next(numbers):037d}",
            home=household.root,
            files=files,
            zone=household.zone,
            version="test",
            policy=POLICY,
            toolbox=household.toolbox,
            ground=Ground(
                store=house.store, clock=household.clock, files=files, withheld=Withheld(house=household.root)
            ),
        )
        yield DeskHouse(house, desk)
