"""What a provider can do to a house, over a real line: each fault has its bound, its words, its end and its row."""

from __future__ import annotations

import json
import logging
import ssl
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from faults import time_passing, until
from flows.fake_provider import (
    KEY,
    Answer,
    Provider,
    Said,
    calls_made,
    household_of,
    provider,
    refuses,
    says,
    section,
    told,
)

from retinue.domain.envelope import Outcome
from retinue.domain.record import Reply
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.wait_conditions import WAIT_LIMIT_S

PATIENCE_S = 0.3  # with a server that hangs, until it does what it never will
LONG_PATIENCE_S = 600.0  # with any other: on a busy machine an answer may take its time
BEGUN = 'data: {"choices": [{"index": 0, "delta": {"content": "Hal"}}]}\n\n'
DAY = "Mon, 05 Jan 2026 09:00:00 GMT"


@pytest.fixture(autouse=True)
def every_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


@asynccontextmanager
async def opened(
    root: Path,
    server: Provider,
    *,
    passing: bool = True,
    format_: str = "openai-chat",
    first_byte_s: float = LONG_PATIENCE_S,
    silence_s: float = LONG_PATIENCE_S,
) -> AsyncGenerator[tuple[LocalInstance, LocalServer]]:
    """A house that asks this server."""
    toml = section("mock", server.url, format_=format_)
    household = household_of(root, toml, first_byte_s=first_byte_s, silence_s=silence_s)
    async with household.run() as house:
        if not passing:
            yield household, house
            return
        async with time_passing(household):
            yield household, house


def searched(root: Path, caplog: pytest.LogCaptureFixture, secret: str) -> list[str]:
    """Where a secret is found: in any file of the house, so in every envelope, record, row and event; or in a log."""
    found = [str(path) for path in root.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    lines = [f"{record.getMessage()} {record.__dict__} {record.exc_info}" for record in caplog.records]
    return found + [line for line in lines if secret in line]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What a server answers each time, and what becomes of a question: its words, and the failures in `money`."""

    answer: Answer
    code: str
    sentence: str
    because: str
    try_this: str
    failures: Sequence[tuple[str, str]]
    unknown: bool = False  # whether nobody can know what it cost


def _again(failure: str, times: int) -> list[tuple[str, str]]:
    return [(failure, "again")] * times + [(failure, "give-up")]


MALFORMED = {
    "code": "model.malformed",
    "sentence": "mock sent an invalid reply",
    "because": "it is not JSON",
    "try_this": "check the provider's `url` and `format`",
    "failures": _again("malformed", 1),
    "unknown": True,
}
REFUSED_KEY = {
    "code": "model.auth",
    "sentence": "mock rejected the API key",
    "try_this": "(see retinue credential list)",
    "failures": [("auth", "give-up")],
}

FAULTS = {
    "401": Fault(
        answer=refuses(401, f"Incorrect API key provided: {KEY}."),
        because="it says: Incorrect API key provided: ***",
        **REFUSED_KEY,
    ),
    "401 without a word": Fault(answer=Answer(status=401), because="it was revoked, or copied with", **REFUSED_KEY),
    "403": Fault(
        answer=refuses(403, "This project has no access to the model."),
        code="model.permission",
        sentence="mock does not allow this request with this API key",
        because="it says: This project has no access to the model.",
        try_this="check the key's permissions at the provider, or choose another model",
        failures=[("permission", "give-up")],
    ),
    "404": Fault(
        answer=refuses(404, "The model `m1` does not exist", type_="model_not_found"),
        code="model.not_offered",
        sentence="mock does not offer this model",
        because="it says: The model `m1` does not exist",
        try_this="list the models: retinue models",
        failures=[("not_found", "give-up")],
    ),
    "429 without a time": Fault(
        answer=refuses(429, "Rate limit reached"),
        code="model.rate_limit",
        sentence="the rate limit of mock is reached",
        because="it says: Rate limit reached; mock/m1 is available again at 2026-01-05T09:0",
        try_this="wait, then send the message again; if this happens often, add a second key or a fallback model",
        failures=_again("rate_limit", 1),
    ),
    "429 with a time nobody waits for": Fault(
        answer=refuses(429, "Rate limit reached", headers={"retry-after": "7200"}),
        code="model.rate_limit",
        sentence="the rate limit of mock is reached",
        because="mock/m1 is available again at 2026-01-05T11:0",
        try_this="wait, then send the message again",
        failures=[("rate_limit", "give-up")],
    ),
    "500 with a page for a browser": Fault(
        answer=Answer(status=500, body="<!doctype html><html><body><h1>Internal</h1></body></html>"),
        code="model.server",
        sentence="the server of mock failed",
        because="it answered 500 without a reason",
        try_this="send the message again; if it keeps failing, see the provider's status page",
        failures=_again("server", 2),
    ),
    "529": Fault(
        answer=refuses(529, "Overloaded", type_="overloaded_error"),
        code="model.overloaded",
        sentence="mock is overloaded",
        because="it says: Overloaded; mock/m1 is available again at",
        try_this="wait, then send the message again, or set a fallback model",
        failures=_again("overloaded", 2),
    ),
    "hangs before its reply": Fault(
        answer=Answer(hangs_before=True),
        code="model.timeout",
        sentence="mock did not reply in time",
        because=f"it sent nothing for {PATIENCE_S} seconds",
        try_this="raise `silence_s` or `first_byte_s` under `[models]`",
        failures=[("timeout", "give-up")],
        unknown=True,
    ),
    "hangs within its reply": Fault(
        answer=Answer(body=BEGUN, hangs_after=True),
        code="model.timeout",
        sentence="mock stopped in the middle of its reply",
        because=f"it sent nothing for {PATIENCE_S} seconds",
        try_this="raise `silence_s` or `first_byte_s` under `[models]`",
        failures=[("timeout", "give-up")],
        unknown=True,
    ),
    "garbage": Fault(answer=Answer(body=b"\x00\x01\xff what is this"), **MALFORMED),
    "garbage in a stream": Fault(answer=Answer(body="data: {nonsense\n\n"), **MALFORMED),
    "a page for a browser, as a reply": Fault(
        answer=Answer(body="<html><title>Sign in</title></html>", headers={"content-type": "text/html"}), **MALFORMED
    ),
    "200 with an error about the key": Fault(
        answer=Answer(body=json.dumps({"error": {"message": f"Invalid API key {KEY}", "code": 401}})),
        because="it says: Invalid API key ***",
        unknown=True,
        **REFUSED_KEY,
    ),
    "200 with an error about money": Fault(
        answer=Answer(body=json.dumps({"error": {"message": "You exceeded it.", "type": "insufficient_quota"}})),
        code="model.quota",
        sentence="the account at mock has no credit left",
        because="it says: You exceeded it.; mock/m1 is available again at 2026-01-05T14:0",
        try_this="add credit or raise the limit at the provider, or set a fallback model",
        failures=[("quota", "give-up")],
        unknown=True,
    ),
    "an error in the stream": Fault(
        answer=Answer(
            body=BEGUN + f'data: {{"error": {{"message": "went wrong, {KEY}", "type": "server_error"}}}}\n\n'
        ),
        code="model.server",
        sentence="the server of mock failed",
        because="it says: went wrong, ***",
        try_this="send the message again",
        failures=_again("server", 2),
        unknown=True,
    ),
    "cut in the middle": Fault(
        answer=Answer(body=BEGUN, cut=True),
        code="model.connection",
        sentence="the connection to mock failed",
        because="the other side closed the connection",
        try_this="send the message again",
        failures=_again("connection", 2),
        unknown=True,
    ),
    "a request it does not take": Fault(
        answer=refuses(400, "temperature must be between 0 and 2", type_="invalid_request_error"),
        code="model.bad_request",
        sentence="mock rejected the request as invalid",
        because="it says: temperature must be between 0 and 2",
        try_this="check the model's `params`",
        failures=[("bad_request", "give-up")],
    ),
    "moved": Fault(
        answer=Answer(status=302, headers={"location": "http://elsewhere.example/v1"}),
        code="model.moved",
        sentence="mock redirects to another address",
        because="it answered 302 with a redirect to elsewhere.example",
        try_this="set the `url` of the provider mock",
        failures=[("not_found", "give-up")],
    ),
}


SAID_BY_ALL = [name for name, fault in FAULTS.items() if fault.answer.status != 200 or fault.answer.hangs_before]
IN_A_FORMAT = [("openai-chat", name) for name in FAULTS] + [("anthropic", name) for name in SAID_BY_ALL]


@pytest.mark.parametrize(("format_", "name"), IN_A_FORMAT)
async def test_a_fault_is_told_in_words_and_written_down(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, format_: str, name: str
) -> None:
    fault = FAULTS[name]
    async with provider() as server:
        server.always(fault.answer)
        first_byte_s = PATIENCE_S if name == "hangs before its reply" else LONG_PATIENCE_S
        silence_s = PATIENCE_S if name == "hangs within its reply" else LONG_PATIENCE_S
        async with opened(tmp_path, server, format_=format_, first_byte_s=first_byte_s, silence_s=silence_s) as (
            _,
            house,
        ):
            asked = await house.send("hello")
            settled = await house.wait_for_outcome(asked.envelope)
            rows = await calls_made(house)
            [text] = await told(house)
    assert settled.outcome is Outcome.DEAD
    assert settled.because == f"{fault.code}: {fault.sentence}"
    head, because, try_this = text.split("\n")
    assert head == f"Something went wrong: {fault.sentence} [{fault.code}]"
    assert because.startswith("because: ") and fault.because in because
    assert try_this.startswith("try: ") and fault.try_this in try_this
    assert not set("{}<>") & set(text), "words, and no part of a body"
    assert [(row.failure, row.next_move) for row in rows] == list(fault.failures)
    assert len(server.asked) == len(fault.failures)
    assert {bool(row.unknown) for row in rows} == {fault.unknown}
    assert {row.error for row in rows} == {f"{fault.code}: {fault.sentence}"}
    assert searched(tmp_path, caplog, KEY) == []
    assert [each.key for each in server.asked] == [KEY] * len(server.asked), "the key went to whom it is for"


async def test_a_key_that_looks_like_none_is_not_told_either(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with provider(refuses(401, "no such key: tulip.tree"), refuses(401, "x-door is not open-sesame")) as server:
        toml = section("mock", server.url, more='headers = { x-door = { env = "DOOR" } }')
        household = household_of(tmp_path, toml, environment={"MOCK_KEY": "tulip.tree", "DOOR": "open-sesame"})
        async with household.run() as house, time_passing(household):
            for _ in range(2):
                await house.wait_for_outcome((await house.send("hello")).envelope)
            texts = await told(house)
    assert "because: it says: no such key: ***" in texts[0]
    assert "because: it says: x-door is not ***" in texts[1]
    assert (server.asked[0].key, server.asked[0].headers["x-door"]) == ("tulip.tree", "open-sesame")
    assert searched(tmp_path, caplog, "tulip.tree") == []
    assert searched(tmp_path, caplog, "open-sesame") == []


# What passes


PASSING = {
    "500": refuses(500, "try later"),
    "529": refuses(529, "Overloaded"),
    "cut before a word": Answer(cut=True),
    "cut in the middle": Answer(body=BEGUN, cut=True),
    "garbage": Answer(body="what?"),
    "an empty reply": Said(),
}


@pytest.mark.parametrize("name", PASSING)
async def test_what_passes_is_waited_out_and_nobody_notices(tmp_path: Path, name: str) -> None:
    async with provider(PASSING[name], says("Good morning.")) as server, opened(tmp_path, server) as (_, house):
        asked = await house.send("hello")
        assert await house.wait_for_answer(asked.envelope) == "Good morning."
        rows = await calls_made(house)
        assert await told(house) == ["Good morning."], "no word of it, and nothing twice"
        kept = [record.body for record in await house.list_records(asked.session) if isinstance(record.body, Reply)]
    assert [reply.text for reply in kept] == ["Good morning."]
    assert [(row.attempt, row.next_move) for row in rows] == [(1, "again"), (2, None)]
    assert rows[1].failure is None


async def test_an_empty_answer_is_no_answer_it_is_asked_for_once_more_and_then_said(tmp_path: Path) -> None:
    async with provider(Said(), Said(text=" \n")) as server, opened(tmp_path, server) as (_, house):
        settled = await house.wait_for_outcome((await house.send("hello")).envelope)
        [text] = await told(house)
        rows = await calls_made(house)
    assert settled.outcome is Outcome.DEAD
    assert text.startswith("Something went wrong: the reply of mock/m1 is empty [model.empty]")
    assert [(row.failure, row.next_move) for row in rows] == _again("malformed", 1)


TOLD_TO_WAIT = {
    "in seconds": {"headers": {"retry-after": "7"}},
    "as a date": {"headers": {"retry-after": "Mon, 05 Jan 2026 09:00:07 GMT", "date": DAY}},
    "with a fraction": {"headers": {"retry-after": "6.9"}},
    "in milliseconds": {"headers": {"retry-after-ms": "7000", "retry-after": "1"}},
    "only in its words": {"message": "Rate limit reached. Please try again in 7s."},
}


@pytest.mark.parametrize("how", TOLD_TO_WAIT)
async def test_who_is_told_when_to_come_back_comes_then_and_not_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    refusal = refuses(429, **{"message": "Rate limit reached", **TOLD_TO_WAIT[how]})
    async with provider(refusal, says("At last.")) as server, opened(tmp_path, server, passing=False) as (home, house):
        asked = await house.send("hello")
        await until(lambda: "model failed" in caplog.messages, "it was refused")
        await until(lambda: any(7 <= seconds <= 7 * 1.25 for seconds in home.clock.remaining_sleeps()), "it waits")
        await home.clock.advance(6.8)
        assert any(0 < seconds <= 7 * 1.25 - 6.8 for seconds in home.clock.remaining_sleeps()), "it still waits"
        assert len(server.asked) == 1
        await home.clock.advance(7 * 1.25 - 6.8)  # some come a little later than they were told, and not all at once
        assert await house.wait_for_answer(asked.envelope) == "At last."
    assert len(server.asked) == 2


# What is too much


@pytest.mark.spec("C107")
@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (refuses(413, "Request exceeds the maximum size", type_="request_too_large"), "too_large"),
        (refuses(400, "maximum context length is 8192 tokens", type_="context_length_exceeded"), "context_overflow"),
    ],
    ids=["413", "overflow"],
)
async def test_what_is_too_much_even_when_told_in_short_ends_in_a_fresh_context_and_words(
    tmp_path: Path, answer: Answer, failure: str
) -> None:
    async with provider() as server:
        server.always(answer)
        async with opened(tmp_path, server) as (_, house):
            asked = await house.send("hello")
            text = await house.wait_for_answer(asked.envelope)
            rows = await calls_made(house)
            server.always(says("Here again."))
            assert await house.wait_for_answer((await house.send("and now?")).envelope) == "Here again."
    assert text.startswith("This conversation no longer fits into the model's context window")
    assert "Please send your last message again" in text
    assert {(row.failure, row.next_move) for row in rows} == {(failure, "compaction")}
    assert "hello" not in server.asked[-1].raw.decode()


# Types and lines


@pytest.mark.parametrize("type_", ["text/plain", "application/octet-stream", "application/json", "nonsense"])
async def test_a_reply_under_the_wrong_type_is_read_all_the_same(tmp_path: Path, type_: str) -> None:
    whole = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Whole."}, "finish_reason": "stop"}]}
    stream = BEGUN + 'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    answers = [Answer(body=stream, headers={"content-type": type_})]
    answers += [Answer(body=json.dumps(whole), headers={"content-type": "text/event-stream"})]
    async with provider(*answers) as server, opened(tmp_path, server) as (_, house):
        texts = [await house.wait_for_answer((await house.send("hello")).envelope) for _ in range(2)]
    assert texts == ["Hal", "Whole."]


@pytest.fixture(scope="module")
def self_signed(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """A certificate for this machine, that nobody vouches for."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", *kind, *names, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=WAIT_LIMIT_S)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


async def unreached(root: Path, server: Provider) -> tuple[str, list[Any]]:
    async with opened(root, server) as (_, house):
        settled = await house.wait_for_outcome((await house.send("hello")).envelope)
        assert settled.outcome is Outcome.DEAD
        [text] = await told(house)
        return text, await calls_made(house)


async def test_a_server_that_nobody_vouches_for_gets_no_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, self_signed: ssl.SSLContext
) -> None:
    async with provider(secure=self_signed) as server:
        text, rows = await unreached(tmp_path, server)
    assert server.asked == []
    head, because, try_this = text.split("\n")
    assert head == "Something went wrong: the connection to mock failed [model.connection]"
    assert because == "because: its certificate is not valid: self-signed certificate"
    assert try_this == "try: check its `url`, and the clock and the CA certificates of this machine"
    assert [(row.failure, row.next_move, bool(row.unknown)) for row in rows] == [
        *[("connection", "again", False)] * 2,
        ("connection", "give-up", False),
    ]
    assert searched(tmp_path, caplog, KEY) == []


async def test_a_server_without_tls_behind_an_address_with_it_is_told_apart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with provider() as server:
        server.scheme = "https"
        text, rows = await unreached(tmp_path, server)
    head, because, try_this = text.split("\n")
    assert head == "Something went wrong: the connection to mock failed [model.connection]"
    assert because == "because: the TLS handshake failed"
    assert try_this == "try: check whether its `url` must begin with http:// or https://"
    assert {row.failure for row in rows} == {"connection"}
    assert searched(tmp_path, caplog, KEY) == []


async def test_nobody_who_listens_is_told_as_that(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with provider() as server:
        pass
    text, rows = await unreached(tmp_path, server)
    assert text.split("\n") == [
        "Something went wrong: the connection to mock failed [model.connection]",
        "because: the connection was refused",
        "try: check its `url`, and whether it is running",
    ]
    assert [(row.failure, row.next_move) for row in rows] == _again("connection", 2)
    assert not any(row.unknown for row in rows), "what was never sent has cost nothing"
    assert searched(tmp_path, caplog, KEY) == []
