"""An instance whose agents need approvals, with people of every role and a model that follows instructions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from operations.operations_instance import OperationsServer, person

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
SCHEDULE_ADDRESS = f"schedule:{7:032x}"
SCHEDULE_ORIGIN = Origin(OriginKind.SCHEDULE, SCHEDULE_ADDRESS)
SUBAGENT_ORIGIN = Origin(OriginKind.SUBAGENT, "helper-1")


def asking_instance(root: Path, *, ask: Sequence[str] = ("append_line",), **kw: Any) -> LocalInstance:
    """An instance whose agent needs an approval for the tools in `ask` and has the permission tools."""
    instance = LocalInstance(root)
    instance.agents = (Agent(name="ada", model="scripted", tools=ToolRules(ask=tuple(ask)), **kw),)

    def build_permission_tools(store: Store, asks: PermissionRequester) -> Sequence[Tool]:
        held = instance.build_grants(store)
        return (
            RequestPermissionTool(asks, held, store),
            RequestPermissionTool(asks, held, store, name="request_permission_via_parent"),
            GrantPermissionTool(store, instance.clock),
        )

    instance.create_tools = build_permission_tools
    return instance


def follow_instruction(prompt: ModelPrompt) -> ScriptedReply:
    """Do what the last message says: `do: {"tool": ..., "arguments": ...}`, or a list of those. Otherwise say "ok"."""
    last = prompt.records[-1].body
    words = last.text if isinstance(last, UserTurn) else ""
    if "do: " not in words:
        return text_reply("ok")
    wanted = json.JSONDecoder().raw_decode(words[words.index("do: ") + 4 :])[0]
    calls = wanted if isinstance(wanted, list) else [wanted]
    return ScriptedReply(calls=tuple((call["tool"], call["arguments"]) for call in calls))


def tool_instruction(tool: str, **arguments: Any) -> str:
    return "do: " + json.dumps({"tool": tool, "arguments": arguments})


def append_line_instruction(text: str) -> str:
    return tool_instruction("append_line", text=text)


async def wait_for_open_approval(server: LocalServer) -> str:
    statement = sa.text("SELECT id FROM approvals WHERE state = 'open' ORDER BY asked_ms DESC, id LIMIT 1")
    return await server.wait_for(lambda conn: conn.execute(statement).scalar(), what="a pending approval")


async def send_and_wait_for_approval(server: LocalServer, text: str, **kw: Any) -> tuple[str, str]:
    """Send a message and wait until its run needs an approval; the envelope and the approval."""
    receipt = await server.send(text, **kw)
    approval = await wait_for_open_approval(server)
    await server.wait_until_idle()
    return receipt.envelope, approval


async def read_approval_state(server: LocalServer, approval: str) -> str:
    [(state,)] = await rows(server, "SELECT state FROM approvals WHERE id = :id", id=approval)
    return state


async def rows(server: LocalServer, statement: str, **parameters: Any) -> list[Any]:
    return await server.store.scan(lambda conn: list(conn.execute(sa.text(statement), parameters)))


async def list_approval_envelopes(server: LocalServer, name: str) -> list[Envelope]:
    return [envelope for envelope in await server.list_envelopes_to(name) if envelope.kind == "approval"]


async def list_grants(operations: OperationsServer) -> list[dict[str, Any]]:
    return (await operations.ask(OWNER, "grant.list"))["grants"]


def read_witness_lines(instance: LocalInstance) -> list[str]:
    if not instance.witness_file.exists():
        return []
    return [written.split(" ", 1)[1] for written in instance.witness_file.read_text().splitlines()]


def texts_read_by_model(prompt: ModelPrompt) -> str:
    """The results of tool calls and the messages that the model has read."""
    bodies = [record.body for record in prompt.records]
    texts = [body.output if isinstance(body, ToolResult) else getattr(body, "text", "") for body in bodies]
    return "\n".join(texts)


def tool_outputs(prompt: ModelPrompt) -> list[str]:
    return [record.body.output for record in prompt.records if isinstance(record.body, ToolResult)]
