"""`message`: sends an envelope besides the answer, only with files that the agent may read."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from flows.tools_instance import ScriptedServer, Visit, open_scripted_server

from retinue.domain.envelope import Envelope, EnvelopeKind
from retinue.domain.tool import ToolResult
from retinue.domain.trust import Trust
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.testing.scripted_model import tool_call_reply

SECRET = "the owner's own secret"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[ScriptedServer]:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text(SECRET)
    async with open_scripted_server(tmp_path / "home", tools=[Visit()]) as made:
        yield made


async def send(server: ScriptedServer, **arguments: Any) -> tuple[ToolResult, list[Envelope]]:
    """Return the tool result that the model reads, and the envelopes that were sent."""
    session = await server.turn(
        "Send it.", tool_call_reply("message", **{"to": "person:owner", "text": "Here.", **arguments}), "Ok."
    )
    (*_, result) = await server.results(session)
    return result, [mail for mail in await server.mail("person:owner") if mail.kind is EnvelopeKind.MESSAGE]


async def test_the_message_tool_sends_a_file_as_an_attachment(server: ScriptedServer) -> None:
    (server.home() / "notes.txt").write_text("mine")
    result, (mail,) = await send(server, files=["notes.txt"])
    assert not result.failed and mail.text == "Here."
    (attached,) = mail.attachments
    with AttachmentFiles(server.root / "files").open(attached.hash) as file:
        assert (attached.name, file.read()) == ("notes.txt", b"mine")


def _link_to_file(server: ScriptedServer, outside: Path) -> str:
    (server.home() / "link.txt").symlink_to(outside / "secret.txt")
    return "link.txt"


def _link_in_path(server: ScriptedServer, outside: Path) -> str:
    (server.home() / "folder").symlink_to(outside)
    return "folder/secret.txt"


def _link_to_link(server: ScriptedServer, outside: Path) -> str:
    (server.home() / "first.txt").symlink_to("second.txt")
    (server.home() / "second.txt").symlink_to(outside / "secret.txt")
    return "first.txt"


@pytest.mark.spec("D31")
@pytest.mark.parametrize("way", [_link_to_file, _link_in_path, _link_to_link])
async def test_the_message_tool_refuses_a_symlink_that_leads_outside(
    server: ScriptedServer, tmp_path: Path, way: Any
) -> None:
    result, sent = await send(server, files=[way(server, tmp_path / "outside")])
    assert result.failed and "[path.link_outside]" in result.output and SECRET not in result.output
    assert sent == [], "the message is not sent without its attachment either"


@pytest.mark.spec("D31")
async def test_the_message_tool_sends_a_symlink_that_stays_inside_the_workspace(server: ScriptedServer) -> None:
    (server.home() / "notes.txt").write_text("mine")
    (server.home() / "link.txt").symlink_to("notes.txt")
    result, (mail,) = await send(server, files=["link.txt"])
    assert not result.failed and len(mail.attachments) == 1


@pytest.mark.parametrize("path", ["../../outside/secret.txt", "{outside}/secret.txt", "../bo/SOUL.md"])
async def test_the_message_tool_refuses_a_file_that_the_agent_may_not_read(
    server: ScriptedServer, tmp_path: Path, path: str
) -> None:
    result, sent = await send(server, files=[path.format(outside=tmp_path / "outside")])
    assert result.failed and "[path." in result.output and sent == []


async def test_a_message_that_the_message_tool_sends_with_an_untrusted_file_is_untrusted(
    server: ScriptedServer,
) -> None:
    await server.turn(
        "Visit the page and save it to page.txt",
        tool_call_reply("visit"),
        tool_call_reply("write", path="page.txt", content="Words."),
        "Saved.",
        origin="person:owner/other",
    )
    (server.home() / "notes.txt").write_text("mine")
    _, (clean,) = await send(server, files=["notes.txt"])
    _, (_, foreign) = await send(server, files=["page.txt"])
    assert clean.trust is not Trust.UNTRUSTED and foreign.trust is Trust.UNTRUSTED


@pytest.mark.parametrize("to", ["agent:bo", "schedule:morning", "nobody", "person:"])
async def test_the_message_tool_refuses_recipients_that_are_not_people_or_channels(
    server: ScriptedServer, to: str
) -> None:
    result, sent = await send(server, to=to)
    assert result.failed and sent == []
