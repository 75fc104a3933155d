"""Helpers for flows of several agents: people beside the owner, a tool that starts a subagent, and the ledger check."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from flows.tools_instance import ScriptedServer

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
    """Starts a subagent of the calling agent with a task."""

    delegate_work: DelegateWork | None = None
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
        assert self.delegate_work is not None
        request = DelegationRequest(
            kind=DelegationKind.SPAWN,
            run=context.run,
            call=context.call,
            target=context.agent.name,
            text=arguments.task,
            trust=context.trust,
        )
        return (await self.delegate_work(request)).delegation.target_session or ""


def scripted_rule(script: Mapping[str, Sequence[str | ScriptedReply]]) -> Callable[[ModelPrompt], ScriptedReply]:
    """A rule that gives these replies, in order, to any run whose last message contains the words."""
    left = {key: deque(text_reply(x) if isinstance(x, str) else x for x in lines) for key, lines in script.items()}

    def rule(prompt: ModelPrompt) -> ScriptedReply:
        read = next(r.body.text for r in reversed(prompt.records) if isinstance(r.body, UserTurn))
        lines = next((lines for key, lines in left.items() if key in read and lines), None)
        return lines.popleft() if lines else ScriptedReply(fails=f"no reply for: {read[-200:]}")

    return rule


async def add_people(server: ScriptedServer, **roles: Role) -> None:
    def body(conn: Any) -> None:
        for name, role in roles.items():
            people.add(conn, Person(name=name, role=role), at_ms=0)

    await server.server.store.write(body, point="test")


async def list_envelopes_of_kind(server: ScriptedServer, kind: EnvelopeKind) -> list[Envelope]:
    return [mail for mail in await server.mail() if mail.kind is kind]


async def list_texts_to(server: ScriptedServer, who: str = "person:owner") -> list[str]:
    return [mail.text for mail in await server.mail(who)]


async def outcome(server: ScriptedServer, envelope: str) -> SettledOutcome:
    found = await server.server.store.read(lambda conn: envelopes.get_outcome(conn, envelope))
    assert found is not None
    return found


async def assert_ledger_is_ok(server: ScriptedServer) -> None:
    """Nothing was lost, duplicated or left unfinished."""
    now_ms = to_ms(server.server.services.clock.now())
    ledger = await server.server.store.scan(lambda conn: check_ledger(conn, now_ms=now_ms))
    assert ledger.is_ok, "\n".join(ledger.lines())


def read(server: ScriptedServer, body: Callable[[Any], Any]) -> Any:
    return server.server.store.scan(body)
