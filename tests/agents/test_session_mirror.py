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


class MirroredInstance:
    """A local instance whose sessions are mirrored, and the mirror of the running server."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "mirror"
        self.mirror: SessionMirror | None = None
        self.instance = LocalInstance(root / "home", create_engine=self._engine)
        (root / "home").mkdir(exist_ok=True)

    def _engine(self, store: Any, clock: Any, ids: Any, runners: Any, **kw: Any) -> EmbeddedEngine:
        self.mirror = SessionMirror(store, self.folder)
        return EmbeddedEngine(store, clock, ids, {"loop": MirrorRunner(runners["loop"], self.mirror)}, **kw)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[LocalServer]:
        async with self.instance.run() as server:
            assert self.mirror is not None
            await self.mirror.start()
            yield server
            if not server.is_crashed:
                await self.mirror.stop()

    def files(self, session: str | None) -> dict[str, str]:
        assert session is not None
        return {name: (self.folder / session / name).read_text() for name in FILE_NAMES}

    async def wait_until_mirrored(self) -> None:
        assert self.mirror is not None
        await self.mirror.catch_up()


@pytest.fixture
def mirrored_instance(tmp_path: Path) -> MirroredInstance:
    return MirroredInstance(tmp_path)


async def files_in_store(server: LocalServer, session: str | None) -> dict[str, str]:
    assert session is not None
    found = await server.store.scan(lambda conn: daycare_format.read_files(conn, session))
    assert found is not None
    return found.by_name()


@pytest.mark.spec("D75")
async def test_session_mirror_files_exist_before_the_first_message_is_handled(
    mirrored_instance: MirroredInstance,
) -> None:
    found: list[set[str]] = []

    def record_files(prompt: Any) -> Any:
        [folder] = [path for path in mirrored_instance.folder.iterdir() if path.is_dir()]
        found.append({path.name for path in folder.iterdir()})
        assert json.loads((folder / "history.jsonl").read_text().splitlines()[0])["type"] == "start"
        return text_reply("ok")

    mirrored_instance.instance.model.rule = record_files
    async with mirrored_instance.open() as server:
        receipt = await server.send("hello", origin=terminal_origin("maria"))
        assert await server.wait_for_answer(receipt.envelope) == "ok"
    assert found == [set(FILE_NAMES)]


@pytest.mark.spec("D75")
async def test_the_mirrored_history_grows_with_each_committed_record(mirrored_instance: MirroredInstance) -> None:
    async with mirrored_instance.open() as server:
        mirrored_instance.instance.model.will_reply(tool_call_reply("append_line", text="hello"), "done")
        receipt = await server.send("do it")
        await server.wait_for_outcome(receipt.envelope)
        await mirrored_instance.wait_until_mirrored()
        first = mirrored_instance.files(receipt.session)
        assert first == await files_in_store(server, receipt.session)

        mirrored_instance.instance.model.will_reply("more")
        await server.wait_for_outcome((await server.send("go on")).envelope)
        await mirrored_instance.wait_until_mirrored()
        second = mirrored_instance.files(receipt.session)
        assert second == await files_in_store(server, receipt.session)
    assert second["history.jsonl"].startswith(first["history.jsonl"])
    assert len(second["history.jsonl"]) > len(first["history.jsonl"])
    assert second["descriptor.json"] == first["descriptor.json"]


async def test_the_session_mirror_follows_the_store_without_a_trigger(mirrored_instance: MirroredInstance) -> None:
    async with mirrored_instance.open() as server:
        mirrored_instance.instance.model.will_reply("ok")
        receipt = await server.send("hello")
        await server.wait_for_outcome(receipt.envelope)
        wanted = await files_in_store(server, receipt.session)
        await wait_until(lambda: mirrored_instance.files(receipt.session) == wanted, "the files agree with the store")


@pytest.mark.spec("D75")
@pytest.mark.parametrize("what", ["history.jsonl", "descriptor.json", "state.json", "", "..", "cut"])
async def test_deleted_or_changed_mirror_files_are_rewritten(mirrored_instance: MirroredInstance, what: str) -> None:
    mirrored_instance.instance.model.rule = lambda prompt: text_reply("ok")
    async with mirrored_instance.open() as server:
        receipt = await server.send("hello")
        await server.wait_for_outcome(receipt.envelope)
        await mirrored_instance.wait_until_mirrored()
        folder = mirrored_instance.folder / str(receipt.session)
        if what == "cut":
            (folder / "history.jsonl").write_text("something else")
        elif what in FILE_NAMES:
            (folder / what).unlink()
        else:
            shutil.rmtree(folder if what == "" else mirrored_instance.folder)

        await server.wait_for_outcome((await server.send("again")).envelope)
        await mirrored_instance.wait_until_mirrored()
        assert mirrored_instance.files(receipt.session) == await files_in_store(server, receipt.session)


async def test_the_session_mirror_catches_up_with_changes_made_while_it_was_stopped(
    mirrored_instance: MirroredInstance,
) -> None:
    mirrored_instance.instance.model.rule = lambda prompt: text_reply("ok")
    async with mirrored_instance.open() as server:
        first = await server.send("hello")
        await server.wait_for_outcome(first.envelope)
    cursor = (mirrored_instance.folder / CURSOR_FILE).read_text()
    async with mirrored_instance.instance.run() as server:  # no mirror
        assert mirrored_instance.mirror is not None
        second = await server.send("more")
        await server.wait_for_outcome(second.envelope)
        other = await server.send("elsewhere", sender="person:owner")
        await server.wait_for_outcome(other.envelope)
        wanted = await files_in_store(server, first.session), await files_in_store(server, other.session)
    shutil.rmtree(mirrored_instance.folder / str(other.session), ignore_errors=True)
    (mirrored_instance.folder / CURSOR_FILE).write_text(cursor)
    async with mirrored_instance.open():
        pass
    assert (mirrored_instance.files(first.session), mirrored_instance.files(other.session)) == wanted

    shutil.rmtree(mirrored_instance.folder)  # without a cursor it reads all events
    async with mirrored_instance.open():
        pass
    assert (mirrored_instance.files(first.session), mirrored_instance.files(other.session)) == wanted


@pytest.mark.spec("D75")
async def test_the_mirror_does_not_write_through_links(mirrored_instance: MirroredInstance, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    outside_file = outside / "letter"
    outside_file.write_text("not ours")
    mirrored_instance.instance.model.rule = lambda prompt: text_reply("ok")
    async with mirrored_instance.open() as server:
        receipt = await server.send("hello")
        await server.wait_for_outcome(receipt.envelope)
        await mirrored_instance.wait_until_mirrored()
        folder = mirrored_instance.folder / str(receipt.session)
        for plant in ("file", "hard", "folder", "instead", "beside", "cursor"):
            match plant:
                case "file":
                    for name in FILE_NAMES:
                        (folder / name).unlink()
                        (folder / name).symlink_to(outside_file)
                case "hard":
                    (folder / "history.jsonl").unlink()
                    os.link(outside_file, folder / "history.jsonl")
                case "folder":
                    shutil.rmtree(folder)
                    folder.symlink_to(outside)
                case "instead":
                    shutil.rmtree(folder)
                    folder.write_text("a file")
                case "beside":
                    (folder / ".state.json.new").symlink_to(outside_file)
                case _:
                    (mirrored_instance.folder / CURSOR_FILE).unlink()
                    (mirrored_instance.folder / CURSOR_FILE).symlink_to(outside_file)
            await server.wait_for_outcome((await server.send("again")).envelope)
            await mirrored_instance.wait_until_mirrored()
            assert mirrored_instance.files(receipt.session) == await files_in_store(server, receipt.session), plant
            assert (outside_file.read_text(), os.listdir(outside)) == ("not ours", ["letter"]), plant


async def test_an_invalid_session_id_is_not_used_as_a_mirror_folder(mirrored_instance: MirroredInstance) -> None:
    async with mirrored_instance.open() as server:
        await server.execute_sql(
            "INSERT INTO sessions SELECT '../../escaped', name, 'web', 'x', NULL, '', 'sleeping', '{}', '{}', 0, 1, 1,"
            " 0, '', 1, 1, NULL, NULL, NULL, '{}', 0, NULL, 1, 1, NULL, NULL FROM agents LIMIT 1"
        )
        shutil.rmtree(mirrored_instance.folder)
        again = SessionMirror(server.store, mirrored_instance.folder)
        await again.start()
        await again.stop()
        assert not list(mirrored_instance.folder.parent.parent.rglob("escaped"))


async def test_a_deleted_session_is_removed_from_the_mirror(mirrored_instance: MirroredInstance) -> None:
    mirrored_instance.instance.model.rule = lambda prompt: text_reply("ok")
    async with mirrored_instance.open() as server:
        receipt = await server.send("hello")
        await server.wait_for_outcome(receipt.envelope)
        await mirrored_instance.wait_until_mirrored()
        session = await server.get_session(receipt.session)
        assert session.origin.kind is OriginKind.WEB
        await server.store.write(lambda conn: sessions.delete(conn, session.id, at_ms=1), point="test")
        await server.wait_for_outcome((await server.send("again")).envelope)
        assert mirrored_instance.mirror is not None
        await mirrored_instance.mirror._sync(session.id)  # pyright: ignore[reportPrivateUsage]
        assert not (mirrored_instance.folder / session.id).exists()


async def test_runs_continue_while_the_mirror_cannot_write(mirrored_instance: MirroredInstance) -> None:
    mirrored_instance.instance.model.rule = lambda prompt: text_reply("ok")
    mirrored_instance.folder.write_text("a file where the folder should be")
    async with mirrored_instance.open() as server:
        receipt = await server.send("hello")
        assert await server.wait_for_answer(receipt.envelope) == "ok"
        mirrored_instance.folder.unlink()
        await mirrored_instance.wait_until_mirrored()
        assert mirrored_instance.files(receipt.session) == await files_in_store(server, receipt.session)
