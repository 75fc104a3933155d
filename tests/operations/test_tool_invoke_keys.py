"""A tool that is called directly with an idempotency key is called once, also if the server is killed meanwhile."""

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
from cli.server_process import HouseProcess
from flows.tools_instance import HandsHouse, hands_house

from retinue.api.responses import http_status
from retinue.cli import client
from retinue.cli.errors import ServerNotAnswering
from retinue.domain.errors import Conflict, NotAllowed, NotFound
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.store.core import idempotency
from retinue.testing.wait_conditions import wait_until_sync
from retinue.tools.base import CallPending, ToolContext, ToolFailed, ToolOutput, schema_of

WAIT_S = 30.0


class HoldArguments(msgspec.Struct, forbid_unknown_fields=True):
    ends: str = "well"


@dataclass(slots=True)
class Hold:
    """Begins, waits until the test lets it go, and ends as it was told to."""

    begun: int = 0
    began: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    arguments: type[HoldArguments] = HoldArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="hold",
            description="Wait.",
            parameters=schema_of(HoldArguments),
            effects=frozenset({ToolEffect.WRITES}),
            source="plugin:holding",
        )
    )

    async def perform(self, arguments: HoldArguments, context: ToolContext) -> ToolOutput:
        self.begun += 1
        self.began.set()
        await self.go_on.wait()
        match arguments.ends:
            case "failed":
                raise ToolFailed("it could not be held")
            case "pending":
                raise CallPending(datetime(2030, 1, 1, tzinfo=UTC))
            case _:
                return ToolOutput(text=f"held {self.begun}")


@pytest.fixture
def hold() -> Hold:
    return Hold()


@pytest.fixture
async def house(tmp_path: Path, hold: Hold) -> AsyncGenerator[HandsHouse]:
    async with hands_house(tmp_path / "home", tools=[hold]) as made:
        yield made


async def held(house: HandsHouse, key: str, **args: str) -> Any:
    return await house.ask("tool.invoke", once=key, agent="ada", tool="hold", args=args)


async def refused(house: HandsHouse, key: str, **args: str) -> Conflict:
    with pytest.raises(Conflict) as conflict:
        await held(house, key, **args)
    return conflict.value


async def claims(house: HandsHouse) -> int:
    def count(conn: Any) -> int:
        return len(conn.exec_driver_sql("SELECT key FROM answers WHERE body = ''").all())

    return await house.house.store.read(count)


async def test_a_key_is_claimed_while_the_tool_is_at_work_and_then_has_its_answer(
    house: HandsHouse, hold: Hold
) -> None:
    at_work = asyncio.create_task(held(house, "k"))
    await hold.began.wait()
    assert await claims(house) == 1, "it is stored before the tool begins"
    assert (await refused(house, "k")).code == "key.in_progress"
    hold.go_on.set()
    first = await at_work
    assert first == {"tool": "hold", "output": "held 1", "failed": False}
    assert await held(house, "k") == first and hold.begun == 1 and await claims(house) == 0
    assert (await refused(house, "k", ends="failed")).code == "key.reused"
    assert (await held(house, "other"))["output"] == "held 2"


async def test_a_call_that_was_cancelled_is_not_made_again_under_its_key(house: HandsHouse, hold: Hold) -> None:
    at_work = asyncio.create_task(held(house, "k"))
    await hold.began.wait()
    at_work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await at_work
    hold.go_on.set()
    told = [await refused(house, "k") for _ in range(3)]
    assert {error.code for error in told} == {"key.interrupted"} and http_status(told[0]) == 409
    assert len({str(error) for error in told}) == 1, "it is told the same, however often it is asked"
    assert "may or may not have been performed" in told[0].sentence
    assert told[0].because and "it started at 20" in told[0].because
    assert told[0].try_this and "use a new key" in told[0].try_this
    assert (await refused(house, "k", ends="failed")).code == "key.reused", "the key is not free for something else"
    assert hold.begun == 1
    assert (await held(house, "new"))["output"] == "held 2"


async def test_an_error_after_the_tool_has_begun_keeps_the_key_claimed(house: HandsHouse, hold: Hold) -> None:
    hold.go_on.set()
    with pytest.raises(CallPending):  # it has set something going, and no run is there to come back to it
        await held(house, "k", ends="pending")
    assert (await refused(house, "k", ends="pending")).code == "key.interrupted" and hold.begun == 1


async def test_a_tool_that_fails_is_an_answer_like_any_other(house: HandsHouse, hold: Hold) -> None:
    hold.go_on.set()
    first = await held(house, "k", ends="failed")
    assert first["failed"] and await held(house, "k", ends="failed") == first and hold.begun == 1


async def test_what_is_refused_before_the_tool_begins_can_be_tried_again_with_its_key(
    house: HandsHouse, hold: Hold
) -> None:
    hold.go_on.set()
    house.rule(deny=("hold",))
    with pytest.raises(NotFound):
        await held(house, "k")
    house.rule(deny=(), ask=("hold",))
    with pytest.raises(NotAllowed):
        await held(house, "k")
    assert await claims(house) == 0 and hold.begun == 0
    house.rule(ask=())
    assert (await held(house, "k"))["output"] == "held 1"


async def test_without_a_key_nothing_is_stored(house: HandsHouse, hold: Hold) -> None:
    hold.go_on.set()
    for number in (1, 2):
        assert (await held(house, ""))["output"] == f"held {number}"
    assert not await house.house.store.read(lambda conn: conn.exec_driver_sql("SELECT key FROM answers").all())


async def test_releasing_a_key_leaves_an_answer_alone(house: HandsHouse, hold: Hold) -> None:
    hold.go_on.set()
    first = await held(house, "k")
    await house.house.store.write(
        lambda conn: idempotency.release_claim(conn, principal="person:owner", key="k"), point="key-release"
    )
    assert await held(house, "k") == first and hold.begun == 1


# --- a real server, killed ---

FREE = """
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
class Server:
    """A server and a program that appends a line to a file, and then waits at a FIFO until it is opened."""

    process: HouseProcess
    program: Path
    lines: Path
    gate: Path

    def call(self, key: str) -> dict[str, Any]:
        args = {"command": str(self.program), "yield_ms": 60_000}
        return json.loads(client.call_raw("tool.invoke", {"tool": "exec", "args": args}, key=key))

    def call_aside(self, key: str) -> threading.Thread:
        """Make a call that is cut off by the end of the server."""

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
        """Let go on what waits there, and let pass what comes."""
        with suppress(OSError):  # nothing waits: it was ended with the server
            os.close(os.open(self.gate, os.O_WRONLY | os.O_NONBLOCK))
        self.gate.unlink()
        self.gate.touch()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server(HouseProcess(tmp_path / "home"), tmp_path / "program", tmp_path / "lines.txt", tmp_path / "gate")
    made.program.write_text(f"#!/bin/sh\necho line >> {made.lines}\ncat {made.gate}\n")
    made.program.chmod(0o700)
    monkeypatch.setenv("RETINUE_HOME", str(made.process.home))
    monkeypatch.delenv("RETINUE_TOKEN", raising=False)
    os.mkfifo(made.gate)
    made.process.home.mkdir()
    (made.process.home / "retinue.toml").write_text(FREE)
    yield made
    made.open_gate()
    made.process.close()


def test_a_command_that_a_kill_cut_off_is_not_run_again_under_its_key(server: Server) -> None:
    server.process.open()
    calling = server.call_aside("k")
    server.wait_for_line()
    server.process.kill()
    calling.join()
    server.open_gate()
    server.process.open()
    told = [server.refused("k") for _ in range(2)]
    assert told[0]["code"] == "key.interrupted" and told[0] == told[1]
    assert "may or may not have been performed" in told[0]["sentence"] and "use a new key" in told[0]["try"]
    assert server.count() == 1
    server.process.kill()
    server.process.open()
    assert server.refused("k")["code"] == "key.interrupted", "also after one more start"
    assert not server.call("new")["failed"] and server.count() == 2
    assert server.process.call("house.ledger")["holds"]


def test_a_command_whose_answer_was_lost_is_not_run_again_under_its_key(server: Server) -> None:
    server.open_gate()
    server.process.open(crash_at="answer.before-commit:1")
    server.call_aside("k").join()
    server.process.wait_for_crash()
    assert server.count() == 1, "it was run to its end"
    server.process.open()
    assert server.refused("k")["code"] == "key.interrupted" and server.count() == 1


def test_a_command_whose_key_was_not_yet_claimed_runs_when_it_is_asked_for_again(server: Server) -> None:
    server.open_gate()
    server.process.open(crash_at="key-claim.before-commit:1")
    server.call_aside("k").join()
    server.process.wait_for_crash()
    assert server.count() == 0, "nothing begins before the key is stored"
    server.process.open()
    first = server.call("k")
    assert not first["failed"] and server.call("k") == first and server.count() == 1
