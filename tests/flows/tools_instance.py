"""A complete server with all built-in tools and a scripted model: what `retinue run` opens, without real connectors."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from operations.operations_instance import person

from retinue.app.server import RunningServer, default_parts, open_server
from retinue.config import Configuration, Settings, load_configuration
from retinue.config.tools import OutsideSenderToolSettings
from retinue.connectors.base import Connector
from retinue.domain import address
from retinue.domain.agent import Agent
from retinue.domain.approval import Approval
from retinue.domain.envelope import Envelope, EnvelopeDraft, Receipt
from retinue.domain.ids import EnvelopeId, SessionId
from retinue.domain.principal import Principal
from retinue.domain.record import Record
from retinue.domain.session import Origin, OriginKind
from retinue.domain.structs import replace
from retinue.domain.tool import ToolEffect, ToolResult, ToolSpec
from retinue.domain.trust import Trust
from retinue.operations.base import perform_operation
from retinue.operations.catalog import OPERATIONS
from retinue.store.core.tables import approvals as approvals_table
from retinue.store.core.tables import envelopes as envelopes_table
from retinue.store.envelopes import envelopes
from retinue.store.runs import approvals
from retinue.store.sessions import records
from retinue.testing.empty_store import create_empty_store
from retinue.testing.failure_context import describe_on_failure
from retinue.testing.scripted_model import ScriptedModel, ScriptedReply
from retinue.testing.server_description import ServerSource
from retinue.testing.tools import AppendLineTool
from retinue.testing.wait_conditions import wait_until
from retinue.tools.base import Tool, ToolContext, ToolFailed, ToolOutput, schema_of

OWNER = person("owner")
ADA = Agent(name="ada", model="scripted")
BO = Agent(name="bo", model="scripted")


class VisitArguments(msgspec.Struct, forbid_unknown_fields=True):
    page: str = ""


@dataclass(slots=True)
class Visit:
    """A web page: its text and its trust."""

    says: str = "A page."
    trust: Trust = Trust.UNTRUSTED
    fails: str = ""
    arguments: type[msgspec.Struct] = VisitArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="visit",
            description="Look at a page.",
            parameters=schema_of(VisitArguments),
            effects=frozenset({ToolEffect.READS_PRIVATE, ToolEffect.READS_UNTRUSTED}),
            source="plugin:pages",
        )
    )

    async def perform(self, arguments: VisitArguments, context: ToolContext) -> ToolOutput:
        if self.fails:
            raise ToolFailed(self.fails)
        return ToolOutput(text=self.says, trust=self.trust)


@dataclass(slots=True)
class ScriptedServer:
    server: RunningServer
    root: Path
    model: ScriptedModel
    configuration: Configuration
    witness: Path
    models: Mapping[str, ScriptedModel] = field(default_factory=dict[str, ScriptedModel])
    crashed: bool = False
    _numbers: int = 0

    # --- input ---

    async def post(
        self,
        text: str,
        *,
        sender: str = "person:owner",
        to: str = "agent:ada",
        trust: Trust | None = None,
        origin: str = "",
        at: Origin | None = None,
        **kw: Any,
    ) -> Receipt:
        self._numbers += 1
        id_ = EnvelopeId(self.server.services.ids.new())
        draft = EnvelopeDraft(
            id=id_,
            sender=address.parse_address(sender),
            recipient=address.parse_address(to),
            text=text,
            source=sender,
            idempotency_key=id_,
            origin=Origin(OriginKind.TERMINAL, origin) if origin else at,
            trust=trust or (Trust.OWNER if sender == "person:owner" else Trust.PERSON),
            **kw,
        )
        return await self.server.services.intake.accept(draft)

    async def turn(self, text: str, *lines: str | ScriptedReply, **kw: Any) -> SessionId:
        """Send a message, let the model reply with its script, and wait until the server is idle; the session."""
        assert not self.model.script, "the script has unused replies"
        self.model.will_reply(*lines)
        receipt = await self.post(text, **kw)
        await self.rest()
        assert receipt.session is not None
        return receipt.session

    async def rest(self) -> None:
        """Wait until no run is active and no delivery is in progress. Schedules may start runs later."""
        still = 0

        def rests() -> bool:
            nonlocal still
            still = 0 if self.server.engine.active_lanes or self.server.outbox.active_count else still + 1
            return still >= 3  # a run that has just ended may have started another

        await wait_until(rests, "the server is idle")

    # --- conditions for scripted replies: `text_reply("Three.", once=server.once_sent_to("I asked bo."))` ---

    def once_sent_to(self, *words: str, to: str = "person:owner") -> Callable[[], Awaitable[object]]:
        """Wait until each of these texts was sent to an address."""
        return partial(wait_until, partial(self._has_mail, words, to), f"{to} received {words}")

    def once_sent(self, *words: str) -> Callable[[], Awaitable[object]]:
        """Wait until each of these texts was sent, to any address."""
        return partial(wait_until, partial(self._has_mail, words, ""), f"{words} were sent")

    def once_model_reads(self, words: str) -> Callable[[], Awaitable[object]]:
        """Wait until a model was called with these words."""

        def is_read() -> bool:
            return any(words in str(prompt.records[-1].body) for prompt in self.model.prompts)

        return partial(wait_until, is_read, f"a model has read {words!r}")

    async def _has_mail(self, words: tuple[str, ...], to: str) -> bool:
        texts = [mail.text for mail in await self.mail(to)]
        return all(any(each in text for text in texts) for each in words)

    async def ask(self, operation: str, *, who: Principal = OWNER, once: str = "", **parameters: Any) -> Any:
        body = json.dumps(parameters).encode()
        return json.loads(await perform_operation(self.server.services, who, OPERATIONS[operation], body, key=once))

    async def answer(self, approval: Approval, *, allow: bool = True, **kw: Any) -> None:
        await self.ask("approval.answer", id=approval.id, allow=allow, **kw)
        await self.rest()

    def rule(self, **tools: Any) -> None:
        """Change the rules for tools from now on."""
        self.rules(replace(self.settings, tools=replace(self.settings.tools, **tools)))

    def rules(self, settings: Settings) -> None:
        self.server.services.require_config_holder().current = replace(
            self.server.services.require_config_holder().current, settings=settings
        )

    @property
    def settings(self) -> Settings:
        return self.server.services.require_config_holder().current.settings

    def crash(self) -> None:
        """Stop as `kill -9` would: nothing more is written."""
        self.crashed = True
        self.server.engine.abandon()
        self.server.outbox.abandon()

    # --- output ---

    @property
    def lines(self) -> list[str]:
        """What was performed: the lines of the witness file, without the call that wrote each."""
        text = self.witness.read_text() if self.witness.exists() else ""
        return [line.partition(" ")[2] for line in text.splitlines()]

    async def records(self, session: str) -> list[Record]:
        found, damaged = await self.server.store.scan(partial(records.read_range, session=session, first=1, last=2**60))
        assert not damaged
        return found

    async def results(self, session: str) -> list[ToolResult]:
        return [record.body for record in await self.records(session) if isinstance(record.body, ToolResult)]

    async def asked(self) -> list[Approval]:
        """The open approvals, oldest first."""

        def read(conn: Any) -> list[Approval]:
            ids = [row.id for row in conn.execute(approvals_table.select()) if row.state == "open"]
            found = (approvals.get(conn, id_) for id_ in ids)
            return sorted((each for each in found if each is not None), key=lambda each: each.requested_at)

        return await self.server.store.scan(read)

    async def asked_for(self) -> list[tuple[str, dict[str, Any]]]:
        return [(call.tool, call.arguments) for approval in await self.asked() for call in approval.calls]

    async def mail(self, recipient: str = "") -> list[Envelope]:
        """All envelopes, oldest first, or those to one address."""

        def read(conn: Any) -> list[Envelope]:
            statement = envelopes_table.select().order_by(envelopes_table.c.seq)
            found = [envelopes.envelope_from_row(row) for row in conn.execute(statement)]
            return [mail for mail in found if not recipient or str(mail.recipient) == recipient]

        return await self.server.store.scan(read)

    def home(self, agent: str = "ada") -> Path:
        return self.root / "agents" / agent


@asynccontextmanager
async def open_scripted_server(
    root: Path,
    *,
    staff: Sequence[Agent] = (ADA, BO),
    tools: Sequence[Tool] = (),
    config: str = "",
    others: Sequence[str] = (),
    model: ScriptedModel | None = None,
    connectors: Sequence[Connector] = (),
    outside_profile: str | None = "full",
) -> AsyncGenerator[ScriptedServer]:
    """`others` are further scripted models, by name. A server that is opened again may bring its `model`.

    Outside senders have all tools here, so that the other restrictions show. `outside_profile` None: the default
    setting.
    """
    root.mkdir(parents=True, exist_ok=True)
    if config:
        (root / "retinue.toml").write_text(config)
    configuration = load_configuration({"RETINUE_HOME": str(root)})
    if outside_profile is not None:
        settings = configuration.settings
        rules = replace(settings.tools, outside_senders=OutsideSenderToolSettings(profile=outside_profile))
        configuration = replace(configuration, settings=replace(settings, tools=rules))
    base = default_parts()
    model = model or ScriptedModel(base.clock)
    witness = root / "witness.txt"
    models = [model, *(ScriptedModel(base.clock, name=name) for name in others)]
    parts = replace(
        base,
        models=models,
        first_agents=staff,
        tools=[AppendLineTool(witness), *tools],
        connectors=connectors,
        configuration=configuration,
    )
    create_empty_store(root / "retinue.db")
    async with open_server(configuration.settings, parts) as server:
        made = ScriptedServer(server, root, model, configuration, witness, {each.name: each for each in models})
        with describe_on_failure(ServerSource(database=root / "retinue.db")):
            yield made
            if not made.crashed:
                await made.rest()
