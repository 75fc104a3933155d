"""Faults of a provider over a real connection: each has a limit, an error text, an outcome and a stored row."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from faults import advancing_clock, poll_until
from flows.fake_provider import (
    KEY,
    Answer,
    FakeReply,
    Provider,
    build_instance,
    calls_made,
    error_answer,
    list_texts_to,
    provider,
    provider_section,
    says,
)

from retinue.domain.envelope import Outcome
from retinue.domain.record import Reply
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.loop_time import skip_loop_time_on_increase
from retinue.testing.wait_conditions import WAIT_LIMIT_S

SHORT_TIMEOUT_S = 0.3  # for a server that hangs after the beginning of its reply has arrived
SKIPPED_TIMEOUT_S = 30.0  # for a server that hangs before: the test skips this time once the request has arrived
LONG_TIMEOUT_S = 600.0  # for any other server: an answer may take long on a busy machine
PARTIAL_STREAM = 'data: {"choices": [{"index": 0, "delta": {"content": "Hal"}}]}\n\n'
RESPONSE_DATE = "Mon, 05 Jan 2026 09:00:00 GMT"


@pytest.fixture(autouse=True)
def capture_debug_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


@asynccontextmanager
async def run_server_with_provider(
    root: Path,
    provider_server: Provider,
    *,
    passing: bool = True,
    format_: str = "openai-chat",
    first_byte_s: float = LONG_TIMEOUT_S,
    silence_s: float = LONG_TIMEOUT_S,
) -> AsyncGenerator[tuple[LocalInstance, LocalServer]]:
    """Run a server that uses this provider."""
    toml = provider_section("mock", provider_server.url, format_=format_)
    instance = build_instance(root, toml, first_byte_s=first_byte_s, silence_s=silence_s)
    async with instance.run() as server:
        if not passing:
            yield instance, server
            return
        async with advancing_clock(server):
            yield instance, server


def find_secret(root: Path, caplog: pytest.LogCaptureFixture, secret: str) -> list[str]:
    """Where a secret is found: in any file of the instance (so in any envelope, record, row or event), or in a log."""
    found = [str(path) for path in root.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    lines = [f"{record.getMessage()} {record.__dict__} {record.exc_info}" for record in caplog.records]
    return found + [line for line in lines if secret in line]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The answers of a provider, and the result: the reply to the person and the failures in `model_calls`."""

    answer: Answer
    code: str
    sentence: str
    because: str
    try_this: str
    failures: Sequence[tuple[str, str]]
    unknown: bool = False  # whether the cost is unknown


def _retried_failures(failure: str, times: int) -> list[tuple[str, str]]:
    return [(failure, "retry")] * times + [(failure, "give_up")]


MALFORMED = {
    "code": "model.malformed",
    "sentence": "mock sent an invalid reply",
    "because": "it is not JSON",
    "try_this": "check the provider's `url` and `format`",
    "failures": _retried_failures("malformed", 1),
    "unknown": True,
}
REFUSED_KEY = {
    "code": "model.auth",
    "sentence": "mock rejected the API key",
    "try_this": "(see retinue credential list)",
    "failures": [("auth", "give_up")],
}

FAULTS = {
    "401": Fault(
        answer=error_answer(401, f"Incorrect API key provided: {KEY}."),
        because="it says: Incorrect API key provided: ***",
        **REFUSED_KEY,
    ),
    "401 without a body": Fault(answer=Answer(status=401), because="it was revoked, or copied with", **REFUSED_KEY),
    "403": Fault(
        answer=error_answer(403, "This project has no access to the model."),
        code="model.permission",
        sentence="mock does not allow this request with this API key",
        because="it says: This project has no access to the model.",
        try_this="check the key's permissions at the provider, or choose another model",
        failures=[("permission", "give_up")],
    ),
    "404": Fault(
        answer=error_answer(404, "The model `m1` does not exist", type_="model_not_found"),
        code="model.not_offered",
        sentence="mock does not offer this model",
        because="it says: The model `m1` does not exist",
        try_this="list the models: retinue models",
        failures=[("not_found", "give_up")],
    ),
    "429 without a time": Fault(
        answer=error_answer(429, "Rate limit reached"),
        code="model.rate_limit",
        sentence="the rate limit of mock is reached",
        because="it says: Rate limit reached; mock/m1 is available again at 2026-01-05T09:0",
        try_this="wait, then send the message again; if this happens often, add a second key or a fallback model",
        failures=_retried_failures("rate_limit", 1),
    ),
    "429 with a long retry time": Fault(
        answer=error_answer(429, "Rate limit reached", headers={"retry-after": "7200"}),
        code="model.rate_limit",
        sentence="the rate limit of mock is reached",
        because="mock/m1 is available again at 2026-01-05T11:0",
        try_this="wait, then send the message again",
        failures=[("rate_limit", "give_up")],
    ),
    "500 with an HTML page": Fault(
        answer=Answer(status=500, body="<!doctype html><html><body><h1>Internal</h1></body></html>"),
        code="model.server",
        sentence="the server of mock failed",
        because="it answered with HTTP status 500, without a reason",
        try_this="send the message again; if it keeps failing, see the provider's status page",
        failures=_retried_failures("server", 2),
    ),
    "529": Fault(
        answer=error_answer(529, "Overloaded", type_="overloaded_error"),
        code="model.overloaded",
        sentence="mock is overloaded",
        because="it says: Overloaded; mock/m1 is available again at",
        try_this="wait, then send the message again, or set a fallback model",
        failures=_retried_failures("overloaded", 2),
    ),
    "hangs before its reply": Fault(
        answer=Answer(hangs_before=True),
        code="model.timeout",
        sentence="mock did not reply in time",
        because=f"it sent nothing for {SKIPPED_TIMEOUT_S:g} seconds",
        try_this="raise `stream_idle_timeout_s` or `first_byte_timeout_s` in `[models]`",
        failures=[("timeout", "give_up")],
        unknown=True,
    ),
    "hangs during its reply": Fault(
        answer=Answer(body=PARTIAL_STREAM, hangs_after=True),
        code="model.timeout",
        sentence="mock stopped in the middle of its reply",
        because=f"it sent nothing for {SHORT_TIMEOUT_S} seconds",
        try_this="raise `stream_idle_timeout_s` or `first_byte_timeout_s` in `[models]`",
        failures=[("timeout", "give_up")],
        unknown=True,
    ),
    "garbage": Fault(answer=Answer(body=b"\x00\x01\xff what is this"), **MALFORMED),
    "garbage in a stream": Fault(answer=Answer(body="data: {nonsense\n\n"), **MALFORMED),
    "an HTML page as a reply": Fault(
        answer=Answer(body="<html><title>Sign in</title></html>", headers={"content-type": "text/html"}), **MALFORMED
    ),
    "200 with a key error": Fault(
        answer=Answer(body=json.dumps({"error": {"message": f"Invalid API key {KEY}", "code": 401}})),
        because="it says: Invalid API key ***",
        unknown=True,
        **REFUSED_KEY,
    ),
    "200 with a quota error": Fault(
        answer=Answer(body=json.dumps({"error": {"message": "You exceeded it.", "type": "insufficient_quota"}})),
        code="model.quota",
        sentence="the account at mock has no credit left",
        because="it says: You exceeded it.; mock/m1 is available again at 2026-01-05T14:0",
        try_this="add credit or raise the limit at the provider, or set a fallback model",
        failures=[("quota", "give_up")],
        unknown=True,
    ),
    "an error in the stream": Fault(
        answer=Answer(
            body=PARTIAL_STREAM + f'data: {{"error": {{"message": "went wrong, {KEY}", "type": "server_error"}}}}\n\n'
        ),
        code="model.server",
        sentence="the server of mock failed",
        because="it says: went wrong, ***",
        try_this="send the message again",
        failures=_retried_failures("server", 2),
        unknown=True,
    ),
    "cut in the middle": Fault(
        answer=Answer(body=PARTIAL_STREAM, cut=True),
        code="model.connection",
        sentence="the connection to mock failed",
        because="the other side closed the connection",
        try_this="send the message again",
        failures=_retried_failures("connection", 2),
        unknown=True,
    ),
    "a request it does not accept": Fault(
        answer=error_answer(400, "temperature must be between 0 and 2", type_="invalid_request_error"),
        code="model.bad_request",
        sentence="mock rejected the request as invalid",
        because="it says: temperature must be between 0 and 2",
        try_this="check the model's `params`",
        failures=[("bad_request", "give_up")],
    ),
    "moved": Fault(
        answer=Answer(status=302, headers={"location": "http://elsewhere.example/v1"}),
        code="model.moved",
        sentence="mock redirects to another address",
        because="it answered with HTTP status 302, a redirect to elsewhere.example",
        try_this="set the `url` of the provider mock",
        failures=[("not_found", "give_up")],
    ),
}


FAULTS_OF_EVERY_FORMAT = [
    name for name, fault in FAULTS.items() if fault.answer.status != 200 or fault.answer.hangs_before
]
FORMATS_AND_FAULTS = [("openai-chat", name) for name in FAULTS] + [
    ("anthropic", name) for name in FAULTS_OF_EVERY_FORMAT
]


@pytest.mark.parametrize(("format_", "name"), FORMATS_AND_FAULTS)
async def test_a_provider_fault_is_reported_in_words_and_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, format_: str, name: str
) -> None:
    fault = FAULTS[name]
    async with provider() as provider_server:
        provider_server.always(fault.answer)
        first_byte_s = SKIPPED_TIMEOUT_S if fault.answer.hangs_before else LONG_TIMEOUT_S
        silence_s = SHORT_TIMEOUT_S if name == "hangs during its reply" else LONG_TIMEOUT_S
        async with (
            run_server_with_provider(
                tmp_path, provider_server, format_=format_, first_byte_s=first_byte_s, silence_s=silence_s
            ) as (_, server),
            skip_loop_time_on_increase(
                SKIPPED_TIMEOUT_S, count=lambda: len(provider_server.asked) if fault.answer.hangs_before else 0
            ),
        ):
            asked = await server.send("hello")
            settled = await server.wait_for_outcome(asked.envelope)
            rows = await calls_made(server)
            [text] = await list_texts_to(server)
    assert settled.outcome is Outcome.DEAD
    assert settled.because == f"{fault.code}: {fault.sentence}"
    head, because, try_this = text.split("\n")
    assert head == f"Something went wrong: {fault.sentence} [{fault.code}]"
    assert because.startswith("because: ") and fault.because in because
    assert try_this.startswith("try: ") and fault.try_this in try_this
    assert not set("{}<>") & set(text), "plain text without parts of the body"
    assert [(row.failure, row.next_action) for row in rows] == list(fault.failures)
    assert len(provider_server.asked) == len(fault.failures)
    assert {bool(row.cost_unknown) for row in rows} == {fault.unknown}
    assert {row.error for row in rows} == {f"{fault.code}: {fault.sentence}"}
    assert find_secret(tmp_path, caplog, KEY) == []
    assert [each.key for each in provider_server.asked] == [KEY] * len(provider_server.asked), (
        "the provider received the key"
    )


async def test_an_unusual_secret_in_a_provider_error_is_redacted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with provider(
        error_answer(401, "no such key: tulip.tree"), error_answer(401, "x-gate is not open-sesame")
    ) as provider_server:
        toml = provider_section("mock", provider_server.url, more='headers = { x-gate = { env = "GATE" } }')
        instance = build_instance(tmp_path, toml, environment={"MOCK_KEY": "tulip.tree", "GATE": "open-sesame"})
        async with instance.run() as server, advancing_clock(server):
            for _ in range(2):
                await server.wait_for_outcome((await server.send("hello")).envelope)
            texts = await list_texts_to(server)
    assert "because: it says: no such key: ***" in texts[0]
    assert "because: it says: x-gate is not ***" in texts[1]
    assert (provider_server.asked[0].key, provider_server.asked[0].headers["x-gate"]) == ("tulip.tree", "open-sesame")
    assert find_secret(tmp_path, caplog, "tulip.tree") == []
    assert find_secret(tmp_path, caplog, "open-sesame") == []


# --- faults that pass ---


TRANSIENT_FAULTS = {
    "500": error_answer(500, "try later"),
    "529": error_answer(529, "Overloaded"),
    "cut before the first text": Answer(cut=True),
    "cut in the middle": Answer(body=PARTIAL_STREAM, cut=True),
    "garbage": Answer(body="what?"),
    "an empty reply": FakeReply(),
}


@pytest.mark.parametrize("name", TRANSIENT_FAULTS)
async def test_a_transient_provider_fault_is_retried_and_the_answer_arrives_once(tmp_path: Path, name: str) -> None:
    async with (
        provider(TRANSIENT_FAULTS[name], says("Good morning.")) as provider_server,
        run_server_with_provider(tmp_path, provider_server) as (_, server),
    ):
        asked = await server.send("hello")
        assert await server.wait_for_answer(asked.envelope) == "Good morning."
        rows = await calls_made(server)
        assert await list_texts_to(server) == ["Good morning."], "no error text, and one answer"
        kept = [record.body for record in await server.list_records(asked.session) if isinstance(record.body, Reply)]
    assert [reply.text for reply in kept] == ["Good morning."]
    assert [(row.attempt, row.next_action) for row in rows] == [(1, "retry"), (2, None)]
    assert rows[1].failure is None


async def test_an_empty_reply_of_a_provider_is_requested_once_more_and_then_reported(tmp_path: Path) -> None:
    async with (
        provider(FakeReply(), FakeReply(text=" \n")) as provider_server,
        run_server_with_provider(tmp_path, provider_server) as (_, server),
    ):
        settled = await server.wait_for_outcome((await server.send("hello")).envelope)
        [text] = await list_texts_to(server)
        rows = await calls_made(server)
    assert settled.outcome is Outcome.DEAD
    assert text.startswith("Something went wrong: the reply of mock/m1 is empty [model.empty]")
    assert [(row.failure, row.next_action) for row in rows] == _retried_failures("malformed", 1)


RETRY_AFTER_FORMS = {
    "in seconds": {"headers": {"retry-after": "7"}},
    "as a date": {"headers": {"retry-after": "Mon, 05 Jan 2026 09:00:07 GMT", "date": RESPONSE_DATE}},
    "with a fraction": {"headers": {"retry-after": "6.9"}},
    "in milliseconds": {"headers": {"retry-after-ms": "7000", "retry-after": "1"}},
    "only in its text": {"message": "Rate limit reached. Please try again in 7s."},
}


@pytest.mark.parametrize("how", RETRY_AFTER_FORMS)
async def test_a_rate_limited_call_is_retried_after_the_time_the_provider_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    refusal = error_answer(429, **{"message": "Rate limit reached", **RETRY_AFTER_FORMS[how]})
    async with (
        provider(refusal, says("At last.")) as provider_server,
        run_server_with_provider(tmp_path, provider_server, passing=False) as (home, server),
    ):
        asked = await server.send("hello")
        await poll_until(lambda: "model failed" in caplog.messages, "the call was refused")
        await poll_until(
            lambda: any(7 <= seconds <= 7 * 1.25 for seconds in home.clock.remaining_sleeps()), "the retry waits"
        )
        await home.clock.advance(6.8)
        assert any(0 < seconds <= 7 * 1.25 - 6.8 for seconds in home.clock.remaining_sleeps()), "the retry still waits"
        assert len(provider_server.asked) == 1
        await home.clock.advance(7 * 1.25 - 6.8)  # retries are spread: some come a little later than requested
        assert await server.wait_for_answer(asked.envelope) == "At last."
    assert len(provider_server.asked) == 2


# --- too much ---


@pytest.mark.spec("C107")
@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (error_answer(413, "Request exceeds the maximum size", type_="request_too_large"), "too_large"),
        (
            error_answer(400, "maximum context length is 8192 tokens", type_="context_length_exceeded"),
            "context_overflow",
        ),
    ],
    ids=["413", "overflow"],
)
async def test_a_request_too_large_for_a_provider_even_when_compacted_leads_to_a_reset(
    tmp_path: Path, answer: Answer, failure: str
) -> None:
    async with provider() as provider_server:
        provider_server.always(answer)
        async with run_server_with_provider(tmp_path, provider_server) as (_, server):
            asked = await server.send("hello")
            text = await server.wait_for_answer(asked.envelope)
            rows = await calls_made(server)
            provider_server.always(says("Here again."))
            assert await server.wait_for_answer((await server.send("and now?")).envelope) == "Here again."
    assert text.startswith("This conversation no longer fits into the model's context window")
    assert "Please send your last message again" in text
    assert {(row.failure, row.next_action) for row in rows} == {(failure, "compaction")}
    assert "hello" not in provider_server.asked[-1].raw.decode()


# --- media types and connections ---


@pytest.mark.parametrize("type_", ["text/plain", "application/octet-stream", "application/json", "nonsense"])
async def test_a_provider_reply_with_a_wrong_content_type_is_parsed(tmp_path: Path, type_: str) -> None:
    complete_reply = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Whole."}, "finish_reason": "stop"}]
    }
    stream = (
        PARTIAL_STREAM + 'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    )
    answers = [Answer(body=stream, headers={"content-type": type_})]
    answers += [Answer(body=json.dumps(complete_reply), headers={"content-type": "text/event-stream"})]
    async with (
        provider(*answers) as provider_server,
        run_server_with_provider(tmp_path, provider_server) as (_, server),
    ):
        texts = [await server.wait_for_answer((await server.send("hello")).envelope) for _ in range(2)]
    assert texts == ["Hal", "Whole."]


@pytest.fixture(scope="module")
def self_signed(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """A certificate for this machine that no authority has signed."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", *kind, *names, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=WAIT_LIMIT_S)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


async def send_to_unreachable(root: Path, provider_server: Provider) -> tuple[str, list[Any]]:
    async with run_server_with_provider(root, provider_server) as (_, server):
        settled = await server.wait_for_outcome((await server.send("hello")).envelope)
        assert settled.outcome is Outcome.DEAD
        [text] = await list_texts_to(server)
        return text, await calls_made(server)


async def test_a_provider_with_an_invalid_certificate_gets_no_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, self_signed: ssl.SSLContext
) -> None:
    async with provider(secure=self_signed) as provider_server:
        text, rows = await send_to_unreachable(tmp_path, provider_server)
    assert provider_server.asked == []
    head, because, try_this = text.split("\n")
    assert head == "Something went wrong: the connection to mock failed [model.connection]"
    assert because == "because: its certificate is not valid: self-signed certificate"
    assert try_this == "try: check its `url`, and the clock and the CA certificates of this machine"
    assert [(row.failure, row.next_action, bool(row.cost_unknown)) for row in rows] == [
        *[("connection", "retry", False)] * 2,
        ("connection", "give_up", False),
    ]
    assert find_secret(tmp_path, caplog, KEY) == []


async def test_a_plain_http_provider_behind_an_https_url_is_reported_as_a_tls_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with provider() as provider_server:
        provider_server.scheme = "https"
        text, rows = await send_to_unreachable(tmp_path, provider_server)
    head, because, try_this = text.split("\n")
    assert head == "Something went wrong: the connection to mock failed [model.connection]"
    assert because == "because: the TLS handshake failed"
    assert try_this == "try: check whether its `url` must begin with http:// or https://"
    assert {row.failure for row in rows} == {"connection"}
    assert find_secret(tmp_path, caplog, KEY) == []


async def test_a_refused_connection_to_a_provider_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as closed:  # bound, so that no other process gets the port, but not listening
        closed.bind(("127.0.0.1", 0))
        provider_server = Provider()
        provider_server.port = closed.getsockname()[1]
        text, rows = await send_to_unreachable(tmp_path, provider_server)
    assert text.split("\n") == [
        "Something went wrong: the connection to mock failed [model.connection]",
        "because: the connection was refused",
        "try: check its `url`, and whether it is running",
    ]
    assert [(row.failure, row.next_action) for row in rows] == _retried_failures("connection", 2)
    assert not any(row.cost_unknown for row in rows), "a call that was not sent has no unknown cost"
    assert find_secret(tmp_path, caplog, KEY) == []
