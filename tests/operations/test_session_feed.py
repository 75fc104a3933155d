"""The event feed of one session."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from operations.operations_instance import open_operations_server, person

from retinue.api.event_feed import NO_FILTER, EventFeed
from retinue.domain.ids import SessionId
from retinue.store.core import events
from retinue.testing.local_instance import LocalInstance
from retinue.testing.wait_conditions import WAIT_LIMIT_S

OWNER = person("owner")


async def test_an_event_feed_of_one_session_gets_all_its_events_among_events_of_other_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_operations_server(LocalInstance(tmp_path)) as server:
        session = SessionId((await server.ask(OWNER, "session.create", agent="ada"))["sessionId"])
        for number in range(6):
            await server.ask(OWNER, "session.create", agent="ada", name=f"Other {number}")
            await server.ask(OWNER, "session.rename", session=session, name=f"Name {number}")
        read = await server.services.store.read(lambda conn: events.list_next(conn, session, 0, limit=100))
        expected = [piece.seq for piece in read.events]
        assert len(expected) > 6 and not read.has_more
        monkeypatch.setattr(events, "SCANNED_EVENTS_MAX", 4)
        for begins in (0, expected[3]):
            followed, joined = EventFeed(server.services, OWNER), EventFeed(server.services, OWNER)
            await followed.open(begins)
            followed.follow(session)
            await joined.open(None)
            await joined.subscribe(session, NO_FILTER, begins)
            for feed in (followed, joined):
                heard: list[int] = []
                async with asyncio.timeout(WAIT_LIMIT_S):
                    while not heard or heard[-1] < expected[-1]:
                        heard += [
                            event.data["seq"] for event in await feed.next_messages() or [] if event.name == "event"
                        ]
                assert heard == [seq for seq in expected if seq > begins]
                feed.close()
