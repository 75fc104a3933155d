"""What flows of several agents have in common: people beside the owner, work sent out by hand, and sums that hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from flows.tools_instance import HandsHouse

from retinue.domain.delegation import DelegationKind
from retinue.domain.delegation_request import DelegateWork, DelegationRequest
from retinue.domain.envelope import Envelope, EnvelopeKind, SettledOutcome
from retinue.domain.person import Person, Role
from retinue.domain.record import UserTurn
from retinue.domain.times import to_ms
from retinue.domain.tool import ToolSpec
from retinue.models.base import ModelPrompt
from retinue.store.envelopes import envelopes
from retinue.store.ledger.ledger import check_ledger
from retinue.store.people import people
from retinue.testing.scripted_model import ScriptedReply, text_reply
from retinue.tools.base import ToolContext, schema_of


class SendOutArguments(msgspec.Struct, forbid_unknown_fields=True):
    task: str


@dataclass(slots=True)
class SendOut:
    """Sends its own agent out on a task, as plainly as can be."""

    hand_over: DelegateWork | None = None
    arguments: type[msgspec.Struct] = SendOutArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="send_out",
            description="Send yourself out.",
            parameters=schema_of(SendOutArguments),
            is_repeatable=True,
        )
    )

    async def perform(self, arguments: SendOutArguments, context: ToolContext) -> str:
        assert self.hand_over is not None
        handing = DelegationRequest(
            kind=DelegationKind.SPAWN,
            run=context.run,
            call=context.call,
            target=context.agent.name,
            text=arguments.task,
            trust=context.trust,
        )
        return (await self.hand_over(handing)).delegation.target_session or ""


def plays(script: Mapping[str, Sequence[str | ScriptedReply]]) -> Callable[[ModelPrompt], ScriptedReply]:
    """A rule by which whoever reads these words last says these lines, one after the other, whoever else speaks."""
    left = {key: deque(text_reply(x) if isinstance(x, str) else x for x in lines) for key, lines in script.items()}

    def rule(prompt: ModelPrompt) -> ScriptedReply:
        read = next(r.body.text for r in reversed(prompt.records) if isinstance(r.body, UserTurn))
        lines = next((lines for key, lines in left.items() if key in read and lines), None)
        return lines.popleft() if lines else ScriptedReply(fails=f"nobody says what to answer to: {read[-200:]}")

    return rule


async def let_in(house: HandsHouse, **roles: Role) -> None:
    def body(conn: Any) -> None:
        for name, role in roles.items():
            people.add(conn, Person(name=name, role=role), at_ms=0)

    await house.house.store.write(body, point="test")


async def letters(house: HandsHouse, kind: EnvelopeKind) -> list[Envelope]:
    return [mail for mail in await house.mail() if mail.kind is kind]


async def said_to(house: HandsHouse, who: str = "person:owner") -> list[str]:
    return [mail.text for mail in await house.mail(who)]


async def outcome(house: HandsHouse, envelope: str) -> SettledOutcome:
    found = await house.house.store.read(lambda conn: envelopes.get_outcome(conn, envelope))
    assert found is not None
    return found


async def sums_hold(house: HandsHouse) -> None:
    """Nothing was lost, doubled or left hanging."""
    now_ms = to_ms(house.house.services.clock.now())
    ledger = await house.house.store.scan(lambda conn: check_ledger(conn, now_ms=now_ms))
    assert ledger.is_ok, "\n".join(ledger.lines())


def read(house: HandsHouse, body: Callable[[Any], Any]) -> Any:
    return house.house.store.scan(body)
