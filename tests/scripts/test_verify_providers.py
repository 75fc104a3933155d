"""Verifying providers, tried on stand-ins: a server on loopback that behaves, and others that do not."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from models.oracle import Made, Said, said_in
from models.replay import Answer, Asked, Provider

ROOT = Path(__file__).parents[2]
KEYS = {name: f"sk-secret-{name.lower()}" for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY")}
LONG_BYTES = 500_000


def answered(asked: Asked) -> Answer:
    """As a provider that does everything right would answer."""
    format_ = asked.path.split("/")[1]
    if not any(key in value for key in KEYS.values() for value in asked.headers.values() if "-wrong" not in value):
        return Answer(status=401, body='{"error": {"type": "authentication_error", "message": "invalid key"}}')
    if len(asked.raw) > LONG_BYTES:
        body = '{"error": {"code": "context_length_exceeded", "status": "INVALID_ARGUMENT", "message": "%s"}}'
        return Answer(status=400, body=body % "input token count exceeds the maximum number of tokens allowed")
    return said_in(format_, _reply_to(asked.raw.decode()), seed=1)


def _reply_to(body: str) -> Made:
    parts = [Said("text", ("It is ", "ready."))]
    if "Which colour" in body:
        parts = [Said("text", ("Red.",))]
    elif "divisible" in body:
        parts = [Said("thinking", ("Let me ", "see."), signature="signed=="), Said("text", ("13",))]
    elif "degrees" in body:
        parts = [Said("text", ("17 degrees; 10 and 20.",))]
    elif "Compare" in body:
        parts = [_call("Oslo"), _call("Rome")]
    elif "Use the tool" in body:
        parts = [_call("Oslo")]
    return Made(
        parts=tuple(parts),
        input_tokens=900,
        output_tokens=40,
        cached_tokens=800 if "Line 99 " in body else 0,
        reasoning_tokens=0,
        cut_short=False,
    )


def _call(city: str) -> Said:
    return Said("call", name="get_weather", arguments=f'{{"city": "{city}"}}', id=f"call_{city}")


class StandIn(Provider):
    """Answers by what it is asked."""

    def __init__(self, answer: Callable[[Asked], Answer]) -> None:
        super().__init__((Answer(),), seed=1)
        self._answer_to = answer

    async def _answer(self, answer: Answer, writer: asyncio.StreamWriter) -> None:
        await super()._answer(self._answer_to(self.last), writer)


@asynccontextmanager
async def stand_in(answer: Callable[[Asked], Answer]) -> AsyncGenerator[StandIn]:
    playing = StandIn(answer)
    server = await asyncio.start_server(playing.serve, "127.0.0.1", 0, limit=1024 * 1024)
    playing.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield playing
    finally:
        server.close()
        await playing.stop()


async def verify(*words: str, url: str = "", keys: dict[str, str] | None = None) -> tuple[int, str]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.endswith("_API_KEY") and name != "VERIFY"},
        **(KEYS if keys is None else keys),
        **({"VERIFY_PROVIDERS_URL": url} if url else {}),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "scripts" / "verify_providers.py"),
        *words,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_without_keys_there_is_nothing_to_verify() -> None:
    code, said = await verify("--yes", keys={})
    assert code == 0
    assert said.startswith("nothing to verify: none of ANTHROPIC_API_KEY, GEMINI_API_KEY, GOOGLE_API_KEY")


async def test_nothing_is_asked_before_a_yes_and_what_it_may_cost_is_said() -> None:
    async with stand_in(answered) as server:
        code, said = await verify(url=server.url)
    assert code == 2
    assert server.asked == []
    assert "costs money" in said
    assert "at most $" in said
    assert "--yes" in said


async def test_a_provider_that_does_everything_right_passes() -> None:
    async with stand_in(answered) as server:
        code, said = await verify("--yes", url=server.url)
    assert code == 0, said
    assert said.rstrip().endswith("32 of 32 as expected")
    assert not any(key in said for key in KEYS.values())


async def test_what_differs_is_named_and_the_exit_says_so() -> None:
    def odd(asked: Asked) -> Answer:
        if b"Which colour" in asked.raw:
            return said_in("anthropic", _reply_to(""), seed=1)  # it sees nothing
        if any("-wrong" in value for value in asked.headers.values()):
            return said_in("anthropic", _reply_to(""), seed=1)  # it takes any key
        return answered(asked)

    async with stand_in(odd) as server:
        code, said = await verify("--yes", "anthropic", url=server.url)
    assert code == 1
    rows = {line.split()[1]: line.split()[2] for line in said.splitlines() if line.startswith("anthropic ")}
    assert rows["image"] == rows["wrong-key"] == "differs"
    assert rows["text"] == rows["tool"] == "ok"
    assert "6 of 8 as expected; 2 not" in said


async def test_a_key_that_a_provider_repeats_is_not_printed() -> None:
    def tells(asked: Asked) -> Answer:
        key = next(value for value in asked.headers.values() if "sk-secre" in value)
        return Answer(status=400, body=f'{{"error": {{"message": "what is {key} to me"}}}}')

    async with stand_in(tells) as server:
        code, said = await verify("--yes", url=server.url)
    assert code == 1
    assert "failed" in said
    assert "sk-secret" not in said
