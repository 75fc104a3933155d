"""Test speech settings: when a reply is spoken, which part of it, and what happens when a program fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retinue.config.speech import SpeechCommand, SpeechMode, SpeechSettings
from retinue.domain.attachment import Attachment
from retinue.intake.speech import FOLDER, SpeechPrograms
from retinue.policy.speech import decide_speech, order_speakers, parse_speech_tags, shorten_speech, to_spoken_text
from retinue.sandbox.base import Sandbox, SandboxFailed
from retinue.sandbox.host import HostSandbox
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.testing.loop_time import skip_loop_time_on_increase

WORKING_SPEAKER = SpeechCommand(command=("/bin/cp", "{input}", "{output}"), voice="alloy")
WORKING_LISTENER = SpeechCommand(command=("/bin/cat", "{input}"))
FAILING_COMMAND = SpeechCommand(command=("/bin/false",))
LONG = "One sentence after the other. " * 200


def settings(mode: SpeechMode = SpeechMode.ALWAYS, **more: Any) -> SpeechSettings:
    more.setdefault("speakers", {"first": WORKING_SPEAKER})
    return SpeechSettings(mode=mode, **more)


# --- decisions ---


@pytest.mark.spec("C97")
@pytest.mark.parametrize(
    ("mode", "text", "answers_voice", "spoken"),
    [
        (SpeechMode.OFF, "[[tts]] A good morning.", True, False),
        (SpeechMode.ALWAYS, "A good morning.", False, True),
        (SpeechMode.INBOUND, "A good morning.", False, False),
        (SpeechMode.INBOUND, "[[tts]] A good morning.", False, False),
        (SpeechMode.INBOUND, "A good morning.", True, True),
        (SpeechMode.TAGGED, "A good morning.", True, False),
        (SpeechMode.TAGGED, "[[tts]] A good morning.", False, True),
        (SpeechMode.TAGGED, "[[tts:voice=nova]] A good morning.", False, True),
    ],
)
def test_each_speech_mode_decides_whether_an_answer_is_spoken(
    mode: SpeechMode, text: str, answers_voice: bool, spoken: bool
) -> None:
    decided = decide_speech(settings(mode), text, answers_voice=answers_voice)
    assert bool(decided.spoken_text) is spoken
    assert bool(decided.because) is not spoken
    assert decided.visible_text == "A good morning."  # tags are not shown


def test_speech_leaves_out_short_answers_and_answers_with_sound_and_needs_configuration() -> None:
    assert decide_speech(settings(), "Yes.", answers_voice=True).because == "it is too short"
    assert decide_speech(settings(), "A good morning.", answers_voice=True, has_sound=True).because
    assert (
        decide_speech(settings(speakers={}), "A good morning.", answers_voice=True).because
        == "no speech program is configured"
    )
    assert decide_speech(SpeechSettings(), "A good morning.", answers_voice=True).because == "speech is disabled"


@pytest.mark.spec("C97")
def test_a_speech_tag_replaces_the_spoken_text_and_sets_only_allowed_overrides() -> None:
    text = "[[tts:voice=nova]][[tts:speed=1.5]]The table:\n|a|b|[[tts:text]]It has two columns.[[/tts:text]]"
    decided = decide_speech(settings(SpeechMode.TAGGED, overrides=("voice",)), text, answers_voice=False)
    assert decided.spoken_text == "It has two columns."
    assert decided.visible_text == "The table:\n|a|b|"
    assert decided.overrides == {"voice": "nova"}


@pytest.mark.parametrize(
    "text",
    [
        "[[tts",
        "[[tts:]]",
        "[[ttsx]]",
        "[[tts:voice=]]",
        "[[tts:voice=--help]]",
        "[[tts:voice=a b]]",
        "[[tts:a=" + "b" * 500,
    ],
)
def test_an_incomplete_speech_tag_stays_in_the_text(text: str) -> None:
    assert parse_speech_tags(text).visible_text == text
    assert not parse_speech_tags(text).is_requested


def test_speech_text_with_many_brackets_is_parsed_in_linear_time() -> None:
    text = "[[tts" * 50_000
    assert parse_speech_tags(text).visible_text == text
    assert to_spoken_text("[" * 200_000 + "](") is not None


def test_spoken_text_has_no_code_no_markdown_and_only_the_host_of_urls() -> None:
    code = "```py\nprint(1)\n```"
    text = f"# Hello\n\n**Bold** and [a page](https://example.com/x).\n{code}\n- see https://a.example/b?c=d now"
    assert to_spoken_text(text) == "Hello\nBold and a page.\nsee a.example now"


def test_long_speech_is_shortened_at_the_end_of_a_sentence() -> None:
    assert shorten_speech("One two. Three four. Five six seven", 25) == "One two. Three four."
    assert shorten_speech("abcdefghij" * 10, 20) == "abcdefghij" * 2 + "…"
    assert shorten_speech("short", 20) == "short"


def test_the_speaker_named_by_a_speech_tag_is_tried_first_and_the_others_after_it() -> None:
    current_settings = settings(speakers={"one": WORKING_SPEAKER, "two": WORKING_SPEAKER, "three": WORKING_SPEAKER})
    assert order_speakers(current_settings, {}) == ("one", "two", "three")
    assert order_speakers(current_settings, {"provider": "three"}) == ("three", "one", "two")
    assert order_speakers(current_settings, {"provider": "unheard"}) == ("one", "two", "three")


# --- programs ---


async def make_host_sandbox() -> Sandbox:
    return HostSandbox()


def voice(tmp_path: Path, current_settings: SpeechSettings, **more: Any) -> tuple[SpeechPrograms, AttachmentFiles]:
    files = AttachmentFiles(tmp_path / "files")
    more.setdefault("sandbox", make_host_sandbox)
    return SpeechPrograms(lambda: current_settings, files, data_dir=tmp_path, environment={}, **more), files


def read_file(files: AttachmentFiles, attachment: Attachment) -> str:
    with files.open(attachment.hash) as opened:
        return opened.read().decode()


@pytest.mark.spec("C97")
async def test_speech_adds_a_voice_file_beside_the_text_of_an_answer(tmp_path: Path) -> None:
    speech, files = voice(tmp_path, settings())
    reply = await speech.prepare_reply("A **good** morning.", answers_voice=False)
    assert reply.text == "A **good** morning."
    assert reply.voice is not None
    assert (reply.voice.name, reply.voice.media_type) == ("voice.ogg", "audio/ogg")
    assert read_file(files, reply.voice) == "A good morning."
    assert list((tmp_path / FOLDER).iterdir()) == []


@pytest.mark.spec("C97")
async def test_the_next_speaker_is_tried_after_a_failure_and_the_text_remains_if_all_fail(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    sleeps = SpeechCommand(command=("/bin/sh", "-c", f"printf x >> {begun}; exec sleep 600"))
    silent = SpeechCommand(command=("/bin/true",))
    links = SpeechCommand(command=("/bin/ln", "-s", "/etc/passwd", "{output}"))
    gone = SpeechCommand(command=("/no/such/program", "{output}"))
    bad = {
        "breaks": FAILING_COMMAND,
        "sleeps": sleeps,
        "silent": silent,
        "links": links,
        "gone": gone,
        "unset": SpeechCommand(),
    }
    speech, files = voice(tmp_path, settings(speakers={**bad, "works": WORKING_SPEAKER}, timeout_s=60))
    async with skip_loop_time_on_increase(60, count=lambda: begun.exists() and len(begun.read_text())):
        reply = await speech.prepare_reply("A good morning.", answers_voice=False)
    assert reply.voice is not None
    assert read_file(files, reply.voice) == "A good morning."
    speech, _ = voice(tmp_path, settings(speakers=bad, timeout_s=60))
    begun.unlink()
    async with skip_loop_time_on_increase(60, count=lambda: begun.exists() and len(begun.read_text())):
        reply = await speech.prepare_reply("A good morning.", answers_voice=False)
    assert (reply.text, reply.voice) == ("A good morning.", None)
    assert reply.because


@pytest.mark.spec("C97")
async def test_a_long_answer_is_summarized_before_it_is_spoken(tmp_path: Path) -> None:
    broken = SpeechCommand(command=("/bin/false",))
    silent = SpeechCommand(command=("/bin/true",))
    counts = SpeechCommand(
        command=("/bin/sh", "-c", 'echo "**Many** sentences: $(wc -c < "$1") to $2."', "sh", "{input}", "{chars}")
    )
    summarizers = {"broken": broken, "silent": silent, "counts": counts}
    speech, files = voice(tmp_path, settings(summarizers=summarizers))
    reply = await speech.prepare_reply(LONG, answers_voice=False)
    assert reply.voice is not None
    assert read_file(files, reply.voice) == f"Many sentences: {len(LONG.strip())} to 1500."
    assert reply.text == LONG
    brief = await speech.prepare_reply("A good morning.", answers_voice=False)
    assert brief.voice is not None and read_file(files, brief.voice) == "A good morning."


@pytest.mark.spec("C97")
@pytest.mark.parametrize(("more", "most"), [({}, 1_500), ({"summarize": False}, 4_096)])
async def test_a_long_answer_is_spoken_up_to_its_limit_if_it_is_not_summarized(
    tmp_path: Path, more: dict[str, Any], most: int
) -> None:
    summarizers = {"broken": SpeechCommand(command=("/bin/false",))}
    speech, files = voice(tmp_path, settings(summarizers=summarizers, **more))
    reply = await speech.prepare_reply(LONG, answers_voice=False)
    assert reply.voice is not None
    spoken_text_read = read_file(files, reply.voice)
    assert most // 2 < len(spoken_text_read) <= most
    assert spoken_text_read.endswith(".")


async def test_a_voice_chosen_by_a_speech_tag_is_passed_as_part_of_a_single_argument(tmp_path: Path) -> None:
    says = SpeechCommand(command=("/bin/echo", "--voice={voice}", "{model}"), voice="alloy", model="{input}")
    speech, files = voice(tmp_path, settings(SpeechMode.TAGGED, speakers={"says": says}, overrides=("voice",)))
    reply = await speech.prepare_reply("[[tts:voice=nova]] A good morning.", answers_voice=False)
    assert reply.voice is not None
    assert read_file(files, reply.voice) == "--voice=nova {input}\n"


async def test_no_speech_command_runs_without_a_working_sandbox(tmp_path: Path) -> None:
    async def raise_sandbox_failed() -> Sandbox:
        raise SandboxFailed("it was not begun", because="no sandbox works here")

    speech, _ = voice(tmp_path, settings(), sandbox=raise_sandbox_failed)
    assert (await speech.prepare_reply("A good morning.", answers_voice=False)).voice is None


@pytest.mark.spec("C97")
async def test_a_voice_message_is_transcribed_by_the_first_working_listener(tmp_path: Path) -> None:
    silent = SpeechCommand(command=("/bin/true",))
    writes = SpeechCommand(command=("/bin/cp", "{input}", "{output}"), file_extension="txt")
    speech, files = voice(tmp_path, SpeechSettings(listeners={"a": FAILING_COMMAND, "b": silent, "c": writes}))
    audio_file = files.store([b" Buy some milk. "], name="voice.oga", media_type="audio/ogg")
    assert await speech.transcribe(audio_file) == "Buy some milk."
    speech, _ = voice(tmp_path, SpeechSettings(listeners={"a": WORKING_LISTENER}))
    assert await speech.transcribe(audio_file) == "Buy some milk."


async def test_speech_gives_an_empty_transcript_without_a_listener_or_for_files_without_audio_or_too_large(
    tmp_path: Path,
) -> None:
    speech, files = voice(tmp_path, SpeechSettings(listeners={"a": WORKING_LISTENER}, audio_bytes_max=1_024))
    picture = files.store([b"picture"], name="a.png", media_type="image/png")
    large = files.store([b"x" * 2_000], name="a.ogg", media_type="audio/ogg")
    assert [await speech.transcribe(each) for each in (picture, large)] == ["", ""]
    speech, _ = voice(tmp_path, SpeechSettings())
    assert await speech.transcribe(large) == ""
