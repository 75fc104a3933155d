"""A house in which agents have to ask: people of every role, a witness, and a model that does as it is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from operations.operations_instance import DeskHouse, person

from retinue.domain.agent import Agent, ToolRules
from retinue.domain.envelope import Envelope
from retinue.domain.record import UserTurn
from retinue.domain.session import Origin, OriginKind
from retinue.domain.tool import ToolResult
from retinue.models.base import ModelPrompt
from retinue.store.core.connection import Store
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import ScriptedReply, text_reply
from retinue.tools.base import Tool
from retinue.tools.permissions import GrantPermissionTool, PermissionRequester, RequestPermissionTool

OWNER, MARIA, NOOR, GUS = person("owner"), person("maria"), person("noor"), person("gus")
CLOCK = f"schedule:{7:032x}"
NIGHT = Origin(OriginKind.SCHEDULE, CLOCK)
HELPER = Origin(OriginKind.SUBAGENT, "helper-1")


def asking_household(root: Path, *, ask: Sequence[str] = ("append_line",), **kw: Any) -> LocalInstance:
    """Its agents ask before they use these, and have the tools for permissions."""
    household = LocalInstance(root)
    household.agents = (Agent(name="ada", model="scripted", tools=ToolRules(ask=tuple(ask)), **kw),)

    def furnishing(store: Store, asks: PermissionRequester) -> Sequence[Tool]:
        held = household.build_grants(store)
        return (
            RequestPermissionTool(asks, held, store),
            RequestPermissionTool(asks, held, store, name="request_permission_via_parent"),
            GrantPermissionTool(store, household.clock),
        )

    household.create_tools = furnishing
    return household


def does(prompt: ModelPrompt) -> ScriptedReply:
    """Do what the last words say: `do: {"tool": ..., "arguments": ...}`, or a list of those. Otherwise say ok."""
    last = prompt.records[-1].body
    words = last.text if isinstance(last, UserTurn) else ""
    if "do: " not in words:
        return text_reply("ok")
    wanted = json.JSONDecoder().raw_decode(words[words.index("do: ") + 4 :])[0]
    calls = wanted if isinstance(wanted, list) else [wanted]
    return ScriptedReply(calls=tuple((call["tool"], call["arguments"]) for call in calls))


def do(tool: str, **arguments: Any) -> str:
    return "do: " + json.dumps({"tool": tool, "arguments": arguments})


def line(text: str) -> str:
    return do("append_line", text=text)


async def open_question(house: LocalServer) -> str:
    statement = sa.text("SELECT id FROM approvals WHERE state = 'open' ORDER BY asked_ms DESC, id LIMIT 1")
    return await house.wait_for(lambda conn: conn.execute(statement).scalar(), what="a question")


async def asked(house: LocalServer, text: str, **kw: Any) -> tuple[str, str]:
    """Post, and wait until somebody is asked: the envelope and the approval."""
    receipt = await house.send(text, **kw)
    approval = await open_question(house)
    await house.wait_until_idle()
    return receipt.envelope, approval


async def state_of(house: LocalServer, approval: str) -> str:
    [(state,)] = await rows(house, "SELECT state FROM approvals WHERE id = :id", id=approval)
    return state


async def rows(house: LocalServer, statement: str, **parameters: Any) -> list[Any]:
    return await house.store.scan(lambda conn: list(conn.execute(sa.text(statement), parameters)))


async def questions(house: LocalServer, name: str) -> list[Envelope]:
    return [envelope for envelope in await house.list_envelopes_to(name) if envelope.kind == "approval"]


async def grants_now(desk: DeskHouse) -> list[dict[str, Any]]:
    return (await desk.ask(OWNER, "grant.list"))["grants"]


def witness(household: LocalInstance) -> list[str]:
    if not household.witness_file.exists():
        return []
    return [written.split(" ", 1)[1] for written in household.witness_file.read_text().splitlines()]


def read_by(prompt: ModelPrompt) -> str:
    """Everything that a model has read of its calls, and of what the house told it."""
    bodies = [record.body for record in prompt.records]
    texts = [body.output if isinstance(body, ToolResult) else getattr(body, "text", "") for body in bodies]
    return "\n".join(texts)


def results(prompt: ModelPrompt) -> list[str]:
    return [record.body.output for record in prompt.records if isinstance(record.body, ToolResult)]
