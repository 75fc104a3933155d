"""A direct tool call with an idempotency key happens once, also if the server is killed during it."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cli.server_process import ServerProcess
from flows.tools_instance import ScriptedServer, open_scripted_server

from retinue.api.responses import http_status
from retinue.cli import client
from retinue.cli.errors import ServerNotAnswering
from retinue.domain.errors import Conflict, NotAllowed, NotFound
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.store.core import idempotency
from retinue.testing.wait_conditions import wait_until_sync
from retinue.tools.base import CallPending, ToolContext, ToolFailed, ToolOutput, schema_of

WAIT_S = 30.0


class WaitToolArguments(msgspec.Struct, forbid_unknown_fields=True):
    ending: str = "well"


@dataclass(slots=True)
class WaitTool:
    """Starts, waits until the test lets it finish, and ends as its argument says."""

    calls_started: int = 0
    has_started: asyncio.Event = field(default_factory=asyncio.Event)
    may_finish: asyncio.Event = field(default_factory=asyncio.Event)
    arguments: type[WaitToolArguments] = WaitToolArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="hold",
            description="Wait.",
            parameters=schema_of(WaitToolArguments),
            effects=frozenset({ToolEffect.WRITES}),
            source="plugin:holding",
        )
    )

    async def perform(self, arguments: WaitToolArguments, context: ToolContext) -> ToolOutput:
        self.calls_started += 1
        self.has_started.set()
        await self.may_finish.wait()
        match arguments.ending:
            case "failed":
                raise ToolFailed("it could not be held")
            case "pending":
                raise CallPending(datetime(2030, 1, 1, tzinfo=UTC))
            case _:
                return ToolOutput(text=f"held {self.calls_started}")


@pytest.fixture
def wait_tool() -> WaitTool:
    return WaitTool()


@pytest.fixture
async def server(tmp_path: Path, wait_tool: WaitTool) -> AsyncGenerator[ScriptedServer]:
    async with open_scripted_server(tmp_path / "home", tools=[wait_tool]) as made:
        yield made


async def invoke_wait_tool(server: ScriptedServer, key: str, **args: str) -> Any:
    return await server.ask("tool.invoke", once=key, agent="ada", tool="hold", args=args)


async def refused(server: ScriptedServer, key: str, **args: str) -> Conflict:
    with pytest.raises(Conflict) as conflict:
        await invoke_wait_tool(server, key, **args)
    return conflict.value


async def count_claims(server: ScriptedServer) -> int:
    def count(conn: Any) -> int:
        return len(conn.exec_driver_sql("SELECT key FROM idempotency_keys WHERE body = ''").all())

    return await server.server.store.read(count)


async def test_an_idempotency_key_is_claimed_during_the_tool_call_and_then_has_its_result(
    server: ScriptedServer, wait_tool: WaitTool
) -> None:
    at_work = asyncio.create_task(invoke_wait_tool(server, "k"))
    await wait_tool.has_started.wait()
    assert await count_claims(server) == 1, "it is stored before the tool begins"
    assert (await refused(server, "k")).code == "key.in_progress"
    wait_tool.may_finish.set()
    first = await at_work
    assert first == {"tool": "hold", "output": "held 1", "failed": False}
    assert (
        await invoke_wait_tool(server, "k") == first
        and wait_tool.calls_started == 1
        and await count_claims(server) == 0
    )
    assert (await refused(server, "k", ending="failed")).code == "key.reused"
    assert (await invoke_wait_tool(server, "other"))["output"] == "held 2"


async def test_a_cancelled_tool_call_is_not_repeated_with_its_idempotency_key(
    server: ScriptedServer, wait_tool: WaitTool
) -> None:
    at_work = asyncio.create_task(invoke_wait_tool(server, "k"))
    await wait_tool.has_started.wait()
    at_work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await at_work
    wait_tool.may_finish.set()
    errors = [await refused(server, "k") for _ in range(3)]
    assert {error.code for error in errors} == {"key.interrupted"} and http_status(errors[0]) == 409
    assert len({str(error) for error in errors}) == 1, "each repetition gets the same error"
    assert "may or may not have been performed" in errors[0].sentence
    assert errors[0].because and "it started at 20" in errors[0].because
    assert errors[0].try_this and "use a new key" in errors[0].try_this
    assert (await refused(server, "k", ending="failed")).code == "key.reused", "the key is not free for something else"
    assert wait_tool.calls_started == 1
    assert (await invoke_wait_tool(server, "new"))["output"] == "held 2"


async def test_an_error_after_the_tool_started_keeps_the_idempotency_key_claimed(
    server: ScriptedServer, wait_tool: WaitTool
) -> None:
    wait_tool.may_finish.set()
    with pytest.raises(CallPending):  # the call started something, and there is no run to continue it
        await invoke_wait_tool(server, "k", ending="pending")
    assert (await refused(server, "k", ending="pending")).code == "key.interrupted" and wait_tool.calls_started == 1


async def test_a_failed_tool_result_is_stored_under_its_idempotency_key(
    server: ScriptedServer, wait_tool: WaitTool
) -> None:
    wait_tool.may_finish.set()
    first = await invoke_wait_tool(server, "k", ending="failed")
    assert (
        first["failed"]
        and await invoke_wait_tool(server, "k", ending="failed") == first
        and wait_tool.calls_started == 1
    )


async def test_a_call_refused_before_the_tool_starts_can_be_repeated_with_its_idempotency_key(
    server: ScriptedServer, wait_tool: WaitTool
) -> None:
    wait_tool.may_finish.set()
    server.rule(deny=("hold",))
    with pytest.raises(NotFound):
        await invoke_wait_tool(server, "k")
    server.rule(deny=(), ask=("hold",))
    with pytest.raises(NotAllowed):
        await invoke_wait_tool(server, "k")
    assert await count_claims(server) == 0 and wait_tool.calls_started == 0
    server.rule(ask=())
    assert (await invoke_wait_tool(server, "k"))["output"] == "held 1"


async def test_a_tool_call_without_an_idempotency_key_stores_no_answer(
    server: ScriptedServer, wait_tool: WaitTool
) -> None:
    wait_tool.may_finish.set()
    for number in (1, 2):
        assert (await invoke_wait_tool(server, ""))["output"] == f"held {number}"
    assert not await server.server.store.read(
        lambda conn: conn.exec_driver_sql("SELECT key FROM idempotency_keys").all()
    )


async def test_releasing_an_idempotency_key_keeps_a_stored_answer(server: ScriptedServer, wait_tool: WaitTool) -> None:
    wait_tool.may_finish.set()
    first = await invoke_wait_tool(server, "k")
    await server.server.store.write(
        lambda conn: idempotency.release_claim(conn, principal="person:owner", key="k"), point="key-release"
    )
    assert await invoke_wait_tool(server, "k") == first and wait_tool.calls_started == 1


# --- a real server, killed ---

UNRESTRICTED_EXEC_SETTINGS = """
[tools]
invoke_allow = ["exec"]
[tools.exec]
host = "host"
security = "full"
ask = "off"
[sandbox]
kind = "off"
mode = "off"
"""


@dataclass(slots=True)
class ServerWithGate:
    """A server and a program that appends a line to a file, and then waits at a FIFO until it is opened."""

    process: ServerProcess
    program: Path
    lines: Path
    gate: Path

    def call(self, key: str) -> dict[str, Any]:
        args = {"command": str(self.program), "yield_ms": 60_000}
        return json.loads(client.call_raw("tool.invoke", {"tool": "exec", "args": args}, key=key))

    def call_in_thread(self, key: str) -> threading.Thread:
        """Make a call that breaks off when the server is killed."""

        def call() -> None:
            with suppress(ServerNotAnswering):
                self.call(key)

        calling = threading.Thread(target=call)
        calling.start()
        return calling

    def refused(self, key: str) -> dict[str, Any]:
        with pytest.raises(client.ApiError) as refused:
            self.call(key)
        return refused.value.error

    def count(self) -> int:
        return self.lines.read_text().count("line\n") if self.lines.exists() else 0

    def wait_for_line(self) -> None:
        wait_until_sync(self.count, "the command has begun")

    def open_gate(self) -> None:
        """Release the program that waits at the gate, and let later ones pass."""
        with suppress(OSError):  # no program waits: it was killed with the server
            os.close(os.open(self.gate, os.O_WRONLY | os.O_NONBLOCK))
        self.gate.unlink()
        self.gate.touch()


@pytest.fixture
def program_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerWithGate]:
    made = ServerWithGate(
        ServerProcess(tmp_path / "home"), tmp_path / "program", tmp_path / "lines.txt", tmp_path / "gate"
    )
    made.program.write_text(f"#!/bin/sh\necho line >> {made.lines}\ncat {made.gate}\n")
    made.program.chmod(0o700)
    monkeypatch.setenv("RETINUE_HOME", str(made.process.home))
    monkeypatch.delenv("RETINUE_TOKEN", raising=False)
    os.mkfifo(made.gate)
    made.process.home.mkdir()
    (made.process.home / "retinue.toml").write_text(UNRESTRICTED_EXEC_SETTINGS)
    yield made
    made.open_gate()
    made.process.close()


def test_a_tool_invoke_call_interrupted_by_a_kill_is_not_repeated_with_its_idempotency_key(
    program_server: ServerWithGate,
) -> None:
    program_server.process.open()
    calling = program_server.call_in_thread("k")
    program_server.wait_for_line()
    program_server.process.kill()
    calling.join()
    program_server.open_gate()
    program_server.process.open()
    errors = [program_server.refused("k") for _ in range(2)]
    assert errors[0]["code"] == "key.interrupted" and errors[0] == errors[1]
    assert "may or may not have been performed" in errors[0]["sentence"] and "use a new key" in errors[0]["try"]
    assert program_server.count() == 1
    program_server.process.kill()
    program_server.process.open()
    assert program_server.refused("k")["code"] == "key.interrupted", "also after another restart"
    assert not program_server.call("new")["failed"] and program_server.count() == 2
    assert program_server.process.call("server.ledger")["ok"]


def test_a_tool_invoke_call_whose_answer_was_not_stored_is_not_repeated_with_its_idempotency_key(
    program_server: ServerWithGate,
) -> None:
    program_server.open_gate()
    program_server.process.open(crash_at="answer.before-commit:1")
    program_server.call_in_thread("k").join()
    program_server.process.wait_for_crash()
    assert program_server.count() == 1, "it ran to its end"
    program_server.process.open()
    assert program_server.refused("k")["code"] == "key.interrupted" and program_server.count() == 1


def test_a_tool_invoke_call_with_an_unclaimed_idempotency_key_at_a_crash_runs_when_repeated(
    program_server: ServerWithGate,
) -> None:
    program_server.open_gate()
    program_server.process.open(crash_at="key-claim.before-commit:1")
    program_server.call_in_thread("k").join()
    program_server.process.wait_for_crash()
    assert program_server.count() == 0, "nothing begins before the key is stored"
    program_server.process.open()
    first = program_server.call("k")
    assert not first["failed"] and program_server.call("k") == first and program_server.count() == 1
