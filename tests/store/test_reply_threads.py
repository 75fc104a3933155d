"""Threads: what an envelope replies to, back to where it began. Made by real letters, and bent by SQL."""

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
def household(request: pytest.FixtureRequest, tmp_path: Path) -> LocalInstance:
    return LocalInstance(tmp_path, url=request.getfixturevalue("postgres_url") if request.param == "postgres" else None)


async def letter(house: LocalServer, reply_to: str | None = None) -> EnvelopeId:
    """A letter to a person, which needs no run. What it replies to is given as people write it."""
    pointer = await house.store.read(partial(envelopes.resolve_id, text=reply_to)) if reply_to else None
    receipt = await house.send("a line", sender="agent:ada", recipient="person:maria", reply_to=pointer)
    return receipt.envelope


async def chain(house: LocalServer, length: int) -> list[EnvelopeId]:
    """Letters that each reply to the one before, the root first."""
    letters = [await letter(house)]
    while len(letters) < length:
        letters.append(await letter(house, short_id(letters[-1])))
    return letters


async def thread_of(house: LocalServer, id_: str) -> ReplyThread:
    return await house.store.scan(partial(get_reply_thread, id_text=id_))


def ids(found: ReplyThread) -> list[EnvelopeId]:
    return [envelope.id for envelope in found.envelopes]


@pytest.mark.spec("H17")
async def test_a_reply_names_a_short_id_and_keeps_the_whole_pointer(household: LocalInstance) -> None:
    async with household.run() as house:
        question = await letter(house)
        answer = await letter(house, question[:8])
        assert (await house.get_envelope(answer)).reply_to == question


@pytest.mark.spec("H17")
async def test_a_thread_is_the_chain_back_to_the_root(household: LocalInstance) -> None:
    async with household.run() as house:
        letters = await chain(house, 4)
        await letter(house, letters[1])  # another branch, which is not on the way
        found = await thread_of(house, short_id(letters[-1]))
        assert ids(found) == letters[::-1]
        assert (found.total, found.left_out, found.whole) == (4, 0, True)
        assert ids(await thread_of(house, letters[0])) == letters[:1]


async def test_an_answer_is_in_the_thread_of_its_question(household: LocalInstance) -> None:
    async with household.run() as house:
        household.model.will_reply("Lunch with Noor.")
        question = (await house.send("What is on today?")).envelope
        settled = await house.wait_for_outcome(question)
        assert settled.answer is not None
        assert ids(await thread_of(house, settled.answer)) == [settled.answer, question]


@pytest.mark.spec("H18")
async def test_a_long_thread_shows_the_nearest_and_the_root_and_counts_the_rest(household: LocalInstance) -> None:
    async with household.run() as house:
        letters = await chain(house, 30)
        for length, left_out in ((19, 0), (20, 0), (21, 1), (30, 10)):
            back = letters[:length][::-1]
            found = await thread_of(house, back[0])
            assert ids(found) == (back if length <= THREAD_SHOWN_MAX else [*back[:19], letters[0]])
            assert (found.total, found.left_out, found.whole) == (length, left_out, True)


@pytest.mark.spec("H18")
async def test_a_circle_ends_where_it_began(household: LocalInstance) -> None:
    async with household.run() as house:
        for length in (1, 2, 25):
            letters = await chain(house, length)
            await house.execute_sql(
                "UPDATE envelopes SET reply_to = :last WHERE id = :root", last=letters[-1], root=letters[0]
            )
            found = await thread_of(house, letters[-1])
            assert (found.total, found.whole) == (length, False)
            assert ids(found) == (letters[::-1] if length <= 20 else [*letters[::-1][:19], letters[0]])


@pytest.mark.spec("H18")
async def test_a_circle_further_back_ends_too(household: LocalInstance) -> None:
    async with household.run() as house:
        letters = await chain(house, 5)
        await house.execute_sql(
            "UPDATE envelopes SET reply_to = :third WHERE id = :first", third=letters[2], first=letters[0]
        )
        found = await thread_of(house, letters[-1])
        assert ids(found) == letters[::-1] and not found.whole


async def test_a_thread_longer_than_anyone_reads_ends_at_its_bound(household: LocalInstance) -> None:
    length = THREAD_HOPS_MAX + 50

    def make_long(conn: sa.Connection) -> None:
        row = conn.execute(sa.text("SELECT * FROM envelopes")).mappings().one()
        rows = [
            {**row, "seq": n, "id": f"{n:032x}", "dedupe_key": f"{n}", "reply_to": f"{n - 1:032x}" if n > 100 else None}
            for n in range(100, 100 + length)
        ]
        conn.execute(sa.insert(envelopes.t.envelopes), rows)

    async with household.run() as house:
        await letter(house)
        await house.store.write(make_long, point="test")
        found = await thread_of(house, f"{99 + length:032x}")
        assert found.total == THREAD_HOPS_MAX and not found.whole
        assert len(found.envelopes) == THREAD_SHOWN_MAX
        assert (await thread_of(house, f"{99 + THREAD_HOPS_MAX:032x}")).whole


async def test_a_thread_with_a_gap_ends_before_it(household: LocalInstance) -> None:
    async with household.run() as house:
        letters = await chain(house, 3)
        await house.execute_sql("UPDATE envelopes SET reply_to = :gone WHERE id = :id", gone="f" * 32, id=letters[1])
        found = await thread_of(house, letters[-1])
        assert ids(found) == letters[:0:-1] and not found.whole


@pytest.mark.spec("H20")
async def test_an_id_is_shown_as_8_digits_and_taken_as_any_longer_beginning(household: LocalInstance) -> None:
    async with household.run() as house:
        id_ = await letter(house)
        assert re.fullmatch(r"[0-9a-f]{8}", short_id(id_)) and id_.startswith(short_id(id_))
        uuid = f"{id_[:8]}-{id_[8:12]}-{id_[12:16]}-{id_[16:20]}-{id_[20:]}"
        for text in (id_[:8], id_[:9], id_[:31], id_, uuid, uuid.upper(), f" {uuid[:13]} "):
            assert await house.store.read(partial(envelopes.resolve_id, text=text)) == id_
            assert ids(await thread_of(house, text)) == [id_]


@pytest.mark.spec("H20")
async def test_what_is_no_id_is_refused_as_such(tmp_path: Path) -> None:
    async with LocalInstance(tmp_path).run() as house:
        for text in ("", "1234567", "not-an-id", "f" * 33, "1234567g", "%' OR 1=1"):
            with pytest.raises(Invalid) as refused:
                await thread_of(house, text)
            assert refused.value.code == "id.invalid"


async def test_an_id_that_nothing_has_is_not_found(tmp_path: Path) -> None:
    async with LocalInstance(tmp_path).run() as house:
        with pytest.raises(NotFound):
            await thread_of(house, "0" * 8)


@pytest.mark.spec("H21")
async def test_an_ambiguous_id_lists_candidates_that_can_be_told_apart(household: LocalInstance) -> None:
    async with household.run() as house:
        letters = [await letter(house) for _ in range(3)]
        alike = [f"abcdef0123{n}" + "0" * 21 for n in range(3)]
        for id_, new in zip(letters, alike, strict=True):
            await house.execute_sql("UPDATE envelopes SET id = :new WHERE id = :old", new=new, old=id_)
        with pytest.raises(AmbiguousId) as ambiguous:
            await thread_of(house, "abcdef01")
        assert ambiguous.value.matches == 3
        assert ambiguous.value.candidates == ("abcdef01230", "abcdef01231", "abcdef01232")
        for candidate, id_ in zip(ambiguous.value.candidates, alike, strict=True):
            assert ids(await thread_of(house, candidate)) == [id_]
