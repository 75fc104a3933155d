"""Reply threads: the envelopes that an envelope replies to, up to the first. Some are changed by SQL."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from retinue.domain.errors import AmbiguousId, Invalid, NotFound
from retinue.domain.ids import EnvelopeId, short_id
from retinue.store.envelopes import envelopes
from retinue.store.envelopes.reply_threads import THREAD_HOPS_MAX, THREAD_SHOWN_MAX, ReplyThread, get_reply_thread
from retinue.testing.local_instance import LocalInstance, LocalServer


@pytest.fixture(params=["sqlite", "postgres"])
def instance(request: pytest.FixtureRequest, tmp_path: Path) -> LocalInstance:
    return LocalInstance(tmp_path, url=request.getfixturevalue("postgres_url") if request.param == "postgres" else None)


async def send_envelope(server: LocalServer, reply_to: str | None = None) -> EnvelopeId:
    """Send an envelope to a person, which needs no run. `reply_to` is a short id."""
    pointer = await server.store.read(partial(envelopes.resolve_id, text=reply_to)) if reply_to else None
    receipt = await server.send("a line", sender="agent:ada", recipient="person:maria", reply_to=pointer)
    return receipt.envelope


async def send_reply_chain(server: LocalServer, length: int) -> list[EnvelopeId]:
    """Send envelopes that each reply to the previous one. Returns the ids, the first one first."""
    chain = [await send_envelope(server)]
    while len(chain) < length:
        chain.append(await send_envelope(server, short_id(chain[-1])))
    return chain


async def thread_of(server: LocalServer, id_: str) -> ReplyThread:
    return await server.store.scan(partial(get_reply_thread, id_text=id_))


def ids(found: ReplyThread) -> list[EnvelopeId]:
    return [envelope.id for envelope in found.envelopes]


@pytest.mark.spec("H17")
async def test_a_reply_in_a_reply_thread_to_a_short_envelope_id_stores_the_full_id(instance: LocalInstance) -> None:
    async with instance.run() as server:
        question = await send_envelope(server)
        answer = await send_envelope(server, question[:8])
        assert (await server.get_envelope(answer)).reply_to == question


@pytest.mark.spec("H17")
async def test_a_reply_thread_is_the_chain_back_to_the_root(instance: LocalInstance) -> None:
    async with instance.run() as server:
        chain = await send_reply_chain(server, 4)
        await send_envelope(server, chain[1])  # another branch, which is not part of the thread
        found = await thread_of(server, short_id(chain[-1]))
        assert ids(found) == chain[::-1]
        assert (found.total, found.left_out, found.whole) == (4, 0, True)
        assert ids(await thread_of(server, chain[0])) == chain[:1]


async def test_an_answer_is_in_the_reply_thread_of_its_question(instance: LocalInstance) -> None:
    async with instance.run() as server:
        instance.model.will_reply("Lunch with Noor.")
        question = (await server.send("What is on today?")).envelope
        settled = await server.wait_for_outcome(question)
        assert settled.answer is not None
        assert ids(await thread_of(server, settled.answer)) == [settled.answer, question]


@pytest.mark.spec("H18")
async def test_a_long_reply_thread_shows_the_nearest_and_the_root_and_counts_the_rest(instance: LocalInstance) -> None:
    async with instance.run() as server:
        chain = await send_reply_chain(server, 30)
        for length, left_out in ((19, 0), (20, 0), (21, 1), (30, 10)):
            back = chain[:length][::-1]
            found = await thread_of(server, back[0])
            assert ids(found) == (back if length <= THREAD_SHOWN_MAX else [*back[:19], chain[0]])
            assert (found.total, found.left_out, found.whole) == (length, left_out, True)


@pytest.mark.spec("H18")
async def test_a_reply_cycle_ends_at_its_start(instance: LocalInstance) -> None:
    async with instance.run() as server:
        for length in (1, 2, 25):
            chain = await send_reply_chain(server, length)
            await server.execute_sql(
                "UPDATE envelopes SET reply_to = :last WHERE id = :root", last=chain[-1], root=chain[0]
            )
            found = await thread_of(server, chain[-1])
            assert (found.total, found.whole) == (length, False)
            assert ids(found) == (chain[::-1] if length <= 20 else [*chain[::-1][:19], chain[0]])


@pytest.mark.spec("H18")
async def test_a_reply_cycle_further_back_ends(instance: LocalInstance) -> None:
    async with instance.run() as server:
        chain = await send_reply_chain(server, 5)
        await server.execute_sql(
            "UPDATE envelopes SET reply_to = :third WHERE id = :first", third=chain[2], first=chain[0]
        )
        found = await thread_of(server, chain[-1])
        assert ids(found) == chain[::-1] and not found.whole


async def test_a_reply_thread_ends_at_its_length_limit(instance: LocalInstance) -> None:
    length = THREAD_HOPS_MAX + 50

    def make_long(conn: sa.Connection) -> None:
        row = conn.execute(sa.text("SELECT * FROM envelopes")).mappings().one()
        rows = [
            {**row, "seq": n, "id": f"{n:032x}", "dedupe_key": f"{n}", "reply_to": f"{n - 1:032x}" if n > 100 else None}
            for n in range(100, 100 + length)
        ]
        conn.execute(sa.insert(envelopes.t.envelopes), rows)

    async with instance.run() as server:
        await send_envelope(server)
        await server.store.write(make_long, point="test")
        found = await thread_of(server, f"{99 + length:032x}")
        assert found.total == THREAD_HOPS_MAX and not found.whole
        assert len(found.envelopes) == THREAD_SHOWN_MAX
        assert (await thread_of(server, f"{99 + THREAD_HOPS_MAX:032x}")).whole


async def test_a_reply_thread_ends_before_a_missing_envelope(instance: LocalInstance) -> None:
    async with instance.run() as server:
        chain = await send_reply_chain(server, 3)
        await server.execute_sql("UPDATE envelopes SET reply_to = :gone WHERE id = :id", gone="f" * 32, id=chain[1])
        found = await thread_of(server, chain[-1])
        assert ids(found) == chain[:0:-1] and not found.whole


@pytest.mark.spec("H20")
async def test_a_reply_thread_is_found_by_an_envelope_id_prefix_of_8_or_more_digits(instance: LocalInstance) -> None:
    async with instance.run() as server:
        id_ = await send_envelope(server)
        assert re.fullmatch(r"[0-9a-f]{8}", short_id(id_)) and id_.startswith(short_id(id_))
        uuid = f"{id_[:8]}-{id_[8:12]}-{id_[12:16]}-{id_[16:20]}-{id_[20:]}"
        for text in (id_[:8], id_[:9], id_[:31], id_, uuid, uuid.upper(), f" {uuid[:13]} "):
            assert await server.store.read(partial(envelopes.resolve_id, text=text)) == id_
            assert ids(await thread_of(server, text)) == [id_]


@pytest.mark.spec("H20")
async def test_a_reply_thread_of_an_invalid_envelope_id_is_refused(tmp_path: Path) -> None:
    async with LocalInstance(tmp_path).run() as server:
        for text in ("", "1234567", "not-an-id", "f" * 33, "1234567g", "%' OR 1=1"):
            with pytest.raises(Invalid) as refused:
                await thread_of(server, text)
            assert refused.value.code == "id.invalid"


async def test_the_reply_thread_of_an_unknown_envelope_id_is_not_found(tmp_path: Path) -> None:
    async with LocalInstance(tmp_path).run() as server:
        with pytest.raises(NotFound):
            await thread_of(server, "0" * 8)


@pytest.mark.spec("H21")
async def test_a_reply_thread_of_an_ambiguous_envelope_id_is_refused_with_distinguishable_candidates(
    instance: LocalInstance,
) -> None:
    async with instance.run() as server:
        sent = [await send_envelope(server) for _ in range(3)]
        alike = [f"abcdef0123{n}" + "0" * 21 for n in range(3)]
        for id_, new in zip(sent, alike, strict=True):
            await server.execute_sql("UPDATE envelopes SET id = :new WHERE id = :old", new=new, old=id_)
        with pytest.raises(AmbiguousId) as ambiguous:
            await thread_of(server, "abcdef01")
        assert ambiguous.value.matches == 3
        assert ambiguous.value.candidates == ("abcdef01230", "abcdef01231", "abcdef01232")
        for candidate, id_ in zip(ambiguous.value.candidates, alike, strict=True):
            assert ids(await thread_of(server, candidate)) == [id_]
