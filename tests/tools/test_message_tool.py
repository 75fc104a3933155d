"""`message`: an envelope beside the answer, with files that the agent may read and no others."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from flows.tools_instance import HandsHouse, Visit, hands_house

from retinue.domain.envelope import Envelope, EnvelopeKind
from retinue.domain.tool import ToolResult
from retinue.domain.trust import Trust
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.testing.scripted_model import tool_call_reply

SECRET = "the owner's own secret"


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[HandsHouse]:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text(SECRET)
    async with hands_house(tmp_path / "home", tools=[Visit()]) as made:
        yield made


async def send(house: HandsHouse, **arguments: Any) -> tuple[ToolResult, list[Envelope]]:
    """What the model reads of it, and what really went out."""
    session = await house.turn(
        "Send it.", tool_call_reply("message", **{"to": "person:owner", "text": "Here.", **arguments}), "Ok."
    )
    (*_, result) = await house.results(session)
    return result, [mail for mail in await house.mail("person:owner") if mail.kind is EnvelopeKind.MESSAGE]


async def test_a_file_goes_with_a_message(house: HandsHouse) -> None:
    (house.home() / "notes.txt").write_text("mine")
    result, (mail,) = await send(house, files=["notes.txt"])
    assert not result.failed and mail.text == "Here."
    (attached,) = mail.attachments
    with AttachmentFiles(house.root / "files").open(attached.hash) as file:
        assert (attached.name, file.read()) == ("notes.txt", b"mine")


def _whole_way(house: HandsHouse, outside: Path) -> str:
    (house.home() / "link.txt").symlink_to(outside / "secret.txt")
    return "link.txt"


def _in_the_middle(house: HandsHouse, outside: Path) -> str:
    (house.home() / "folder").symlink_to(outside)
    return "folder/secret.txt"


def _chain(house: HandsHouse, outside: Path) -> str:
    (house.home() / "first.txt").symlink_to("second.txt")
    (house.home() / "second.txt").symlink_to(outside / "secret.txt")
    return "first.txt"


@pytest.mark.spec("D31")
@pytest.mark.parametrize("way", [_whole_way, _in_the_middle, _chain])
async def test_a_link_that_leads_outside_is_not_sent(house: HandsHouse, tmp_path: Path, way: Any) -> None:
    result, sent = await send(house, files=[way(house, tmp_path / "outside")])
    assert result.failed and "[path.link_outside]" in result.output and SECRET not in result.output
    assert sent == [], "nor is the message without it"


@pytest.mark.spec("D31")
async def test_a_link_that_stays_inside_is_sent(house: HandsHouse) -> None:
    (house.home() / "notes.txt").write_text("mine")
    (house.home() / "link.txt").symlink_to("notes.txt")
    result, (mail,) = await send(house, files=["link.txt"])
    assert not result.failed and len(mail.attachments) == 1


@pytest.mark.parametrize("path", ["../../outside/secret.txt", "{outside}/secret.txt", "../bo/SOUL.md"])
async def test_what_the_agent_may_not_read_is_not_sent(house: HandsHouse, tmp_path: Path, path: str) -> None:
    result, sent = await send(house, files=[path.format(outside=tmp_path / "outside")])
    assert result.failed and "[path." in result.output and sent == []


async def test_a_message_is_believed_as_little_as_what_is_sent_with_it(house: HandsHouse) -> None:
    await house.turn(
        "Visit the page and save it to page.txt",
        tool_call_reply("visit"),
        tool_call_reply("write", path="page.txt", content="Words."),
        "Saved.",
        origin="person:owner/other",
    )
    (house.home() / "notes.txt").write_text("mine")
    _, (clean,) = await send(house, files=["notes.txt"])
    _, (_, foreign) = await send(house, files=["page.txt"])
    assert clean.trust is not Trust.UNTRUSTED and foreign.trust is Trust.UNTRUSTED


@pytest.mark.parametrize("to", ["agent:bo", "schedule:morning", "nobody", "person:"])
async def test_it_is_for_people_and_rooms(house: HandsHouse, to: str) -> None:
    result, sent = await send(house, to=to)
    assert result.failed and sent == []
