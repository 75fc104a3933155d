"""Verifying providers, with a correct and several faulty servers on loopback."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from models.oracle import MadeReply, MadeReplyPart, encode_reply
from models.replay import Answer, Provider, ReceivedRequest

ROOT = Path(__file__).parents[2]
KEYS = {name: f"sk-secret-{name.lower()}" for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY")}
LONG_BYTES = 500_000


def correct_answer(asked: ReceivedRequest) -> Answer:
    """Answer as a correct provider would."""
    format_ = asked.path.split("/")[1]
    if not any(key in value for key in KEYS.values() for value in asked.headers.values() if "-wrong" not in value):
        return Answer(status=401, body='{"error": {"type": "authentication_error", "message": "invalid key"}}')
    if len(asked.raw) > LONG_BYTES:
        body = '{"error": {"code": "context_length_exceeded", "status": "INVALID_ARGUMENT", "message": "%s"}}'
        return Answer(status=400, body=body % "input token count exceeds the maximum number of tokens allowed")
    return encode_reply(format_, _reply_to(asked.raw.decode()), seed=1)


def _reply_to(body: str) -> MadeReply:
    parts = [MadeReplyPart("text", ("It is ", "ready."))]
    if "Which color" in body:
        parts = [MadeReplyPart("text", ("Red.",))]
    elif "divisible" in body:
        parts = [MadeReplyPart("thinking", ("Let me ", "see."), signature="signed=="), MadeReplyPart("text", ("13",))]
    elif "degrees" in body:
        parts = [MadeReplyPart("text", ("17 degrees; 10 and 20.",))]
    elif "Compare" in body:
        parts = [_tool_call("Oslo"), _tool_call("Rome")]
    elif "Use the tool" in body:
        parts = [_tool_call("Oslo")]
    return MadeReply(
        parts=tuple(parts),
        input_tokens=900,
        output_tokens=40,
        cached_tokens=800 if "Line 99 " in body else 0,
        reasoning_tokens=0,
        cut_short=False,
    )


def _tool_call(city: str) -> MadeReplyPart:
    return MadeReplyPart("call", name="get_weather", arguments=f'{{"city": "{city}"}}', id=f"call_{city}")


class ScriptedProvider(Provider):
    """Computes its answer from the request."""

    def __init__(self, answer: Callable[[ReceivedRequest], Answer]) -> None:
        super().__init__((Answer(),), seed=1)
        self._answer_to = answer

    async def _answer(self, answer: Answer, writer: asyncio.StreamWriter) -> None:
        await super()._answer(self._answer_to(self.last), writer)


@asynccontextmanager
async def run_scripted_provider(answer: Callable[[ReceivedRequest], Answer]) -> AsyncGenerator[ScriptedProvider]:
    provider = ScriptedProvider(answer)
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0, limit=1024 * 1024)
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield provider
    finally:
        server.close()
        await provider.stop()


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
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_without_provider_keys_verify_providers_has_nothing_to_verify() -> None:
    code, output = await verify("--yes", keys={})
    assert code == 0
    assert output.startswith("nothing to verify: none of ANTHROPIC_API_KEY, GEMINI_API_KEY, GOOGLE_API_KEY")


async def test_verify_providers_shows_the_maximum_cost_and_needs_yes_before_any_request() -> None:
    async with run_scripted_provider(correct_answer) as server:
        code, output = await verify(url=server.url)
    assert code == 2
    assert server.asked == []
    assert "costs money" in output
    assert "at most $" in output
    assert "--yes" in output


async def test_verify_providers_passes_a_provider_with_correct_answers() -> None:
    async with run_scripted_provider(correct_answer) as server:
        code, output = await verify("--yes", url=server.url)
    assert code == 0, output
    assert output.rstrip().endswith("32 of 32 as expected")
    assert not any(key in output for key in KEYS.values())


async def test_verify_providers_names_wrong_answers_and_exits_with_1() -> None:
    def wrong_answer(asked: ReceivedRequest) -> Answer:
        if b"Which color" in asked.raw:
            return encode_reply("anthropic", _reply_to(""), seed=1)  # it ignores images
        if any("-wrong" in value for value in asked.headers.values()):
            return encode_reply("anthropic", _reply_to(""), seed=1)  # it accepts any key
        return correct_answer(asked)

    async with run_scripted_provider(wrong_answer) as server:
        code, output = await verify("--yes", "anthropic", url=server.url)
    assert code == 1
    rows = {line.split()[1]: line.split()[2] for line in output.splitlines() if line.startswith("anthropic ")}
    assert rows["image"] == rows["wrong-key"] == "differs"
    assert rows["text"] == rows["tool"] == "ok"
    assert "6 of 8 as expected; 2 not" in output


async def test_verify_providers_does_not_print_a_key_that_a_provider_repeats() -> None:
    def answer_with_key(asked: ReceivedRequest) -> Answer:
        key = next(value for value in asked.headers.values() if "sk-secre" in value)
        return Answer(status=400, body=f'{{"error": {{"message": "what is {key} to me"}}}}')

    async with run_scripted_provider(answer_with_key) as server:
        code, output = await verify("--yes", url=server.url)
    assert code == 1
    assert "failed" in output
    assert "sk-secret" not in output
