"""The instructions of sessions in the store."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import pytest
from stores import POSTGRES, SQLITE, create_store_location

from retinue.domain.ids import SessionId
from retinue.store.core.connection import Store
from retinue.store.sessions import instructions
from retinue.store.sessions.instructions import StoredInstructions

STORED_INSTRUCTIONS = StoredInstructions(context_key="1/0", snapshot="{}", text="Be brief.", parts="[]", at_ms=1)


@pytest.fixture(params=[SQLITE, POSTGRES])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Store]:
    async with create_store_location(request.param, request, tmp_path).open() as opened:
        yield opened


async def test_the_store_returns_the_latest_instructions_of_a_session(store: Store) -> None:
    session, other = SessionId("a" * 32), SessionId("b" * 32)

    async def put(whose: SessionId, kept: StoredInstructions) -> None:
        await store.write(partial(instructions.upsert, session=whose, stored=kept), point="test")

    async def get(whose: SessionId) -> StoredInstructions | None:
        return await store.read(partial(instructions.get, session=whose))

    assert await get(session) is None
    assert await store.read(partial(instructions.get_text, session=session)) is None
    await put(session, STORED_INSTRUCTIONS)
    await put(other, STORED_INSTRUCTIONS)
    assert await get(session) == STORED_INSTRUCTIONS
    changed = STORED_INSTRUCTIONS._replace(context_key="9/1", text="Be long. \N{SEEDLING}" * 10_000, at_ms=2)
    await put(session, changed)
    assert await get(session) == changed
    assert await store.read(partial(instructions.get_text, session=session)) == changed.text
    await store.write(partial(instructions.delete, session=session), point="test")
    assert await get(session) is None
    assert await get(other) == STORED_INSTRUCTIONS
