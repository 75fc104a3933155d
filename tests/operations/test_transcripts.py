"""Transcripts: a session as a person reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import OperationsServer, open_operations_server, person

from retinue.domain.errors import NotFound
from retinue.testing.local_instance import LocalInstance

OWNER, GUS = person("owner"), person("gus")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[OperationsServer]:
    async with open_operations_server(LocalInstance(tmp_path)) as made:
        yield made


async def make_conversation(server: OperationsServer, *texts: str) -> str:
    session = ""
    for text in texts:
        sent = await server.ask(OWNER, "envelope.send", to="agent:ada", text=text)
        await server.server.wait_for_outcome(sent["envelope"])
        session = sent["session"]
    return session


def line_texts(read: dict[str, Any]) -> list[str]:
    return [line["envelopes"][0]["text"] if line["envelopes"] else line["body"]["text"] for line in read["records"]]


async def test_a_transcript_shows_the_messages_as_written_beside_the_model_text(server: OperationsServer) -> None:
    session = await make_conversation(server, "good day")
    read = await server.ask(OWNER, "session.transcript", session=session)
    assert [line["kind"] for line in read["records"]] == ["start", "user", "assistant"]
    [mail] = read["records"][1]["envelopes"]
    assert (mail["from"], mail["text"]) == ("person:owner", "good day")
    assert "## Turn Context" in read["records"][1]["body"]["text"]
    assert not read["has_earlier"] and read["context_start"] == 1


async def test_a_transcript_is_read_backwards_in_contiguous_pages(server: OperationsServer) -> None:
    session = await make_conversation(server, *(f"word {n}" for n in range(6)))
    whole = await server.ask(OWNER, "session.transcript", session=session)
    newest = await server.ask(OWNER, "session.transcript", session=session, limit=5)
    assert newest["has_earlier"] and newest["records"] == whole["records"][-5:]
    before = await server.ask(
        OWNER, "session.transcript", session=session, before=newest["records"][0]["seq"], limit=500
    )
    assert before["records"] + newest["records"] == whole["records"] and not before["has_earlier"]
    after = await server.ask(OWNER, "session.transcript", session=session, after=whole["records"][-3]["seq"])
    assert after["records"] == whole["records"][-2:] and not after["has_earlier"]


async def test_a_transcript_starts_at_the_last_reset_unless_earlier_lines_are_requested(
    server: OperationsServer,
) -> None:
    session = await make_conversation(server, "before")
    await server.ask(OWNER, "session.reset", session=session)
    await make_conversation(server, "after")
    now = await server.ask(OWNER, "session.transcript", session=session)
    assert "before" not in line_texts(now) and "after" in line_texts(now)
    assert now["has_earlier"] and now["context_start"] == now["records"][0]["seq"]
    then = await server.ask(OWNER, "session.transcript", session=session, before=now["context_start"])
    assert "before" in line_texts(then)


async def test_a_transcript_of_an_invisible_session_is_not_found(server: OperationsServer) -> None:
    session = await make_conversation(server, "mine")
    with pytest.raises(NotFound):
        await server.ask(GUS, "session.transcript", session=session)
