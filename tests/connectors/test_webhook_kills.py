"""Whole conversations by webhook, with a house in a process of its own that is killed in the midst of them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import pytest
from connectors.server_process import AFTER_ACCEPT, IN_DOUBT, RealHouse, real_house
from connectors.webhook_instance import SECRET, FarSide, far_side, signed
from flows.fake_provider import says

from retinue.connectors.webhook.settings import SignatureScheme
from retinue.connectors.webhook.webhook_signature import verify_request
from retinue.testing.wait_conditions import wait_until

SETTINGS = """
[connectors.ci]
kind = "webhook"
secret_file = "{home}/ci-secret"
url = "URL"
private_hosts = ["HOST"]

[connectors.quiet]
kind = "webhook"
secret_file = "{home}/ci-secret"
"""
pytestmark = pytest.mark.timeout(300)  # a house is opened again and again, on a machine that may be busy
LONG = "A line that is not short.\n" * 2_000


@pytest.fixture(scope="module")
async def far() -> AsyncGenerator[FarSide]:
    async with far_side() as far:
        yield far


@pytest.fixture(scope="module")
async def standing(far: FarSide, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RealHouse]:
    settings = SETTINGS.replace("URL", far.url).replace("HOST", far.host)
    async with real_house(tmp_path_factory.mktemp("webhook"), settings, secrets={"ci-secret": SECRET}) as house:
        yield house


@pytest.fixture
async def house(standing: RealHouse) -> AsyncGenerator[RealHouse]:
    if not standing.is_open:
        await standing.open()
    yield standing
    await standing.holds()


async def post(house: RealHouse, text: str, *, to: str = "ci", id_: str, secret: str = SECRET) -> int:
    """As a program elsewhere does, at the port that the house has now; 0 where it hung up."""
    body = json.dumps({"message": text, "sessionKey": "hook:builds"}).encode()
    url = f"{(house.process.home / 'address').read_text().strip()}/hooks/{to}/agent"
    try:
        headers = signed(body, id_=id_, secret=secret)
        async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=headers) as response:
            return response.status
    except aiohttp.ClientError:
        return 0


def taken(far: FarSide, word: str) -> list[dict[str, Any]]:
    """What the other side took that has a word in it: each once, by its id, as it is asked to."""
    letters = {each.headers["webhook-id"]: each.json for each in far.letters if word in each.json["text"]}
    return list(letters.values())


async def answered(far: FarSide, word: str) -> dict[str, Any]:
    await wait_until(lambda: taken(far, word), f"an answer with {word!r} is there")
    return taken(far, word)[0]


async def test_a_request_is_answered_by_a_signed_request_and_one_that_is_not_proved_by_nothing(
    house: RealHouse, far: FarSide
) -> None:
    assert await post(house, "The build broke, ask-build.", id_="build", secret="a guess") == 401
    assert await post(house, "The build broke, ask-build.", id_="build") == 202
    answer = await answered(far, "An answer to ask-build.")
    assert await post(house, "The build broke, ask-build.", id_="build") == 202
    await house.until_quiet()

    assert answer["room"] == "builds"
    [letter] = [each for each in far.letters if "ask-build" in each.json["text"]]
    now_s = float(letter.headers["webhook-timestamp"])
    assert (
        verify_request(SignatureScheme.STANDARD, SECRET, letter.headers, letter.body, now_s=now_s)
        == letter.headers["webhook-id"]
    )


async def test_where_nobody_is_to_be_told_elsewhere_the_owner_is(house: RealHouse, far: FarSide) -> None:
    assert await post(house, "The bell rings, ask-bell.", to="quiet", id_="bell") == 202
    mail = "select text from envelopes where recipient = 'person:owner' and text like '%ask-bell%'"
    await wait_until(lambda: house.rows(mail), "the owner is told")

    assert taken(far, "ask-bell") == []


async def test_a_long_answer_goes_whole(house: RealHouse, far: FarSide) -> None:
    house.said["ask-long"] = says(LONG)
    await post(house, "At length, ask-long.", id_="long")
    answer = await answered(far, "A line that is not short.")

    assert answer["text"].split() == LONG.split()


async def test_a_killed_house_answers_every_request_and_each_answer_is_known_by_its_id(
    house: RealHouse, far: FarSide
) -> None:
    await house.reopen(dies_at=AFTER_ACCEPT)
    assert await post(house, "Are you there, ask-accepted?", id_="accepted") == 0  # it may or may not be kept
    await house.dies()
    await house.open(dies_at=IN_DOUBT)
    assert await post(house, "Are you there, ask-accepted?", id_="accepted") in (202, 0)  # so it is sent again
    await house.dies()
    await house.open()
    await post(house, "And then, ask-after?", id_="after")
    await answered(far, "An answer to ask-after.")
    await house.until_quiet()

    sent = [each for each in far.letters if "An answer to ask-accepted." in each.json["text"]]
    assert len(sent) == 2  # nobody knew whether the first arrived, and the other side takes it once
    assert len({each.headers["webhook-id"] for each in sent}) == 1
    assert house.outcomes("An answer to ask-accepted.") == ["delivered"]
    assert len(house.rows("select 1 from envelopes where text like '%Are you there, ask-accepted?%'")) == 1


async def test_an_answer_waits_for_the_other_side_to_be_there(house: RealHouse, far: FarSide) -> None:
    far.statuses.extend([503, 503])
    await post(house, "Somebody there, ask-outage?", id_="outage")
    await wait_until(lambda: house.outcomes("An answer to ask-outage.") == ["delivered"], "it is delivered")

    assert len([each for each in far.letters if "ask-outage" in each.json["text"]]) == 3
    assert len(taken(far, "ask-outage")) == 1
