from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from retinue.agents import daycare_format
from retinue.agents.daycare_format import FILE_NAMES
from retinue.agents.session_mirror import CURSOR_FILE, SessionMirror
from retinue.domain.session import OriginKind
from retinue.engine.embedded_engine import EmbeddedEngine
from retinue.runners.mirror_runner import MirrorRunner
from retinue.store.sessions import sessions
from retinue.testing.local_instance import LocalInstance, LocalServer, terminal_origin
from retinue.testing.scripted_model import text_reply, tool_call_reply
from retinue.testing.wait_conditions import wait_until


class MirroredHousehold:
    """A household whose sessions are mirrored, and the mirror of the house that is open."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "mirror"
        self.mirror: SessionMirror | None = None
        self.household = LocalInstance(root / "house", create_engine=self._engine)
        (root / "house").mkdir(exist_ok=True)

    def _engine(self, store: Any, clock: Any, ids: Any, runners: Any, **kw: Any) -> EmbeddedEngine:
        self.mirror = SessionMirror(store, self.folder)
        return EmbeddedEngine(store, clock, ids, {"loop": MirrorRunner(runners["loop"], self.mirror)}, **kw)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[LocalServer]:
        async with self.household.run() as house:
            assert self.mirror is not None
            await self.mirror.start()
            yield house
            if not house.is_crashed:
                await self.mirror.stop()

    def files(self, session: str | None) -> dict[str, str]:
        assert session is not None
        return {name: (self.folder / session / name).read_text() for name in FILE_NAMES}

    async def caught_up(self) -> None:
        assert self.mirror is not None
        await self.mirror.catch_up()


@pytest.fixture
def mirrored(tmp_path: Path) -> MirroredHousehold:
    return MirroredHousehold(tmp_path)


async def in_store(house: LocalServer, session: str | None) -> dict[str, str]:
    assert session is not None
    found = await house.store.scan(lambda conn: daycare_format.read_files(conn, session))
    assert found is not None
    return found.by_name()


@pytest.mark.spec("D75")
async def test_the_files_are_there_before_the_first_message_is_handled(mirrored: MirroredHousehold) -> None:
    found: list[set[str]] = []

    def look(prompt: Any) -> Any:
        [folder] = [path for path in mirrored.folder.iterdir() if path.is_dir()]
        found.append({path.name for path in folder.iterdir()})
        assert json.loads((folder / "history.jsonl").read_text().splitlines()[0])["type"] == "start"
        return text_reply("ok")

    mirrored.household.model.rule = look
    async with mirrored.open() as house:
        receipt = await house.send("hello", origin=terminal_origin("maria"))
        assert await house.wait_for_answer(receipt.envelope) == "ok"
    assert found == [set(FILE_NAMES)]


@pytest.mark.spec("D75")
async def test_history_grows_as_records_commit(mirrored: MirroredHousehold) -> None:
    async with mirrored.open() as house:
        mirrored.household.model.will_reply(tool_call_reply("append_line", text="hello"), "done")
        receipt = await house.send("do it")
        await house.wait_for_outcome(receipt.envelope)
        await mirrored.caught_up()
        first = mirrored.files(receipt.session)
        assert first == await in_store(house, receipt.session)

        mirrored.household.model.will_reply("more")
        await house.wait_for_outcome((await house.send("go on")).envelope)
        await mirrored.caught_up()
        second = mirrored.files(receipt.session)
        assert second == await in_store(house, receipt.session)
    assert second["history.jsonl"].startswith(first["history.jsonl"])
    assert len(second["history.jsonl"]) > len(first["history.jsonl"])
    assert second["descriptor.json"] == first["descriptor.json"]


async def test_it_follows_by_itself(mirrored: MirroredHousehold) -> None:
    async with mirrored.open() as house:
        mirrored.household.model.will_reply("ok")
        receipt = await house.send("hello")
        await house.wait_for_outcome(receipt.envelope)
        wanted = await in_store(house, receipt.session)
        await wait_until(lambda: mirrored.files(receipt.session) == wanted, "the files are as the store is")


@pytest.mark.spec("D75")
@pytest.mark.parametrize("what", ["history.jsonl", "descriptor.json", "state.json", "", "..", "cut"])
async def test_deleting_the_files_loses_nothing(mirrored: MirroredHousehold, what: str) -> None:
    mirrored.household.model.rule = lambda prompt: text_reply("ok")
    async with mirrored.open() as house:
        receipt = await house.send("hello")
        await house.wait_for_outcome(receipt.envelope)
        await mirrored.caught_up()
        folder = mirrored.folder / str(receipt.session)
        if what == "cut":
            (folder / "history.jsonl").write_text("something else")
        elif what in FILE_NAMES:
            (folder / what).unlink()
        else:
            shutil.rmtree(folder if what == "" else mirrored.folder)

        await house.wait_for_outcome((await house.send("again")).envelope)
        await mirrored.caught_up()
        assert mirrored.files(receipt.session) == await in_store(house, receipt.session)


async def test_what_happened_while_it_was_away_is_written_when_it_is_back(mirrored: MirroredHousehold) -> None:
    mirrored.household.model.rule = lambda prompt: text_reply("ok")
    async with mirrored.open() as house:
        first = await house.send("hello")
        await house.wait_for_outcome(first.envelope)
    cursor = (mirrored.folder / CURSOR_FILE).read_text()
    async with mirrored.household.run() as house:  # no mirror
        assert mirrored.mirror is not None
        second = await house.send("more")
        await house.wait_for_outcome(second.envelope)
        other = await house.send("elsewhere", sender="person:owner")
        await house.wait_for_outcome(other.envelope)
        wanted = await in_store(house, first.session), await in_store(house, other.session)
    shutil.rmtree(mirrored.folder / str(other.session), ignore_errors=True)
    (mirrored.folder / CURSOR_FILE).write_text(cursor)
    async with mirrored.open():
        pass
    assert (mirrored.files(first.session), mirrored.files(other.session)) == wanted

    shutil.rmtree(mirrored.folder)  # without a cursor it looks at all
    async with mirrored.open():
        pass
    assert (mirrored.files(first.session), mirrored.files(other.session)) == wanted


@pytest.mark.spec("D75")
async def test_no_link_leads_it_outside(mirrored: MirroredHousehold, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    letter = outside / "letter"
    letter.write_text("not ours")
    mirrored.household.model.rule = lambda prompt: text_reply("ok")
    async with mirrored.open() as house:
        receipt = await house.send("hello")
        await house.wait_for_outcome(receipt.envelope)
        await mirrored.caught_up()
        folder = mirrored.folder / str(receipt.session)
        for plant in ("file", "hard", "folder", "instead", "beside", "cursor"):
            match plant:
                case "file":
                    for name in FILE_NAMES:
                        (folder / name).unlink()
                        (folder / name).symlink_to(letter)
                case "hard":
                    (folder / "history.jsonl").unlink()
                    os.link(letter, folder / "history.jsonl")
                case "folder":
                    shutil.rmtree(folder)
                    folder.symlink_to(outside)
                case "instead":
                    shutil.rmtree(folder)
                    folder.write_text("a file")
                case "beside":
                    (folder / ".state.json.new").symlink_to(letter)
                case _:
                    (mirrored.folder / CURSOR_FILE).unlink()
                    (mirrored.folder / CURSOR_FILE).symlink_to(letter)
            await house.wait_for_outcome((await house.send("again")).envelope)
            await mirrored.caught_up()
            assert mirrored.files(receipt.session) == await in_store(house, receipt.session), plant
            assert (letter.read_text(), os.listdir(outside)) == ("not ours", ["letter"]), plant


async def test_an_id_that_is_none_is_not_a_folder(mirrored: MirroredHousehold) -> None:
    async with mirrored.open() as house:
        await house.execute_sql(
            "INSERT INTO sessions SELECT '../../escaped', name, 'web', 'x', NULL, '', 'sleeping', '{}', '{}', 0, 1, 1,"
            " 0, '', 1, 1, NULL, NULL, NULL, '{}', 0, NULL, 1, 1, NULL, NULL FROM agents LIMIT 1"
        )
        shutil.rmtree(mirrored.folder)
        again = SessionMirror(house.store, mirrored.folder)
        await again.start()
        await again.stop()
        assert not list(mirrored.folder.parent.parent.rglob("escaped"))


async def test_a_deleted_session_leaves_the_mirror(mirrored: MirroredHousehold) -> None:
    mirrored.household.model.rule = lambda prompt: text_reply("ok")
    async with mirrored.open() as house:
        receipt = await house.send("hello")
        await house.wait_for_outcome(receipt.envelope)
        await mirrored.caught_up()
        session = await house.get_session(receipt.session)
        assert session.origin.kind is OriginKind.WEB
        await house.store.write(lambda conn: sessions.delete(conn, session.id, at_ms=1), point="test")
        await house.wait_for_outcome((await house.send("again")).envelope)
        assert mirrored.mirror is not None
        await mirrored.mirror._sync(session.id)  # pyright: ignore[reportPrivateUsage]
        assert not (mirrored.folder / session.id).exists()


async def test_a_disk_that_fails_stops_nobody(mirrored: MirroredHousehold) -> None:
    mirrored.household.model.rule = lambda prompt: text_reply("ok")
    mirrored.folder.write_text("a file where the folder should be")
    async with mirrored.open() as house:
        receipt = await house.send("hello")
        assert await house.wait_for_answer(receipt.envelope) == "ok"
        mirrored.folder.unlink()
        await mirrored.caught_up()
        assert mirrored.files(receipt.session) == await in_store(house, receipt.session)
