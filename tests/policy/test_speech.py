"""Speech: when an answer is spoken, which words of it, and what is done where a program fails."""

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

SPEAKS = SpeechCommand(command=("/bin/cp", "{input}", "{output}"), voice="alloy")
HEARS = SpeechCommand(command=("/bin/cat", "{input}"))
BREAKS = SpeechCommand(command=("/bin/false",))
LONG = "One sentence after the other. " * 200


def settings(mode: SpeechMode = SpeechMode.ALWAYS, **more: Any) -> SpeechSettings:
    more.setdefault("speakers", {"first": SPEAKS})
    return SpeechSettings(mode=mode, **more)


# --- what is decided ---


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
def test_each_mode_speaks_when_it_should(mode: SpeechMode, text: str, answers_voice: bool, spoken: bool) -> None:
    decided = decide_speech(settings(mode), text, answers_voice=answers_voice)
    assert bool(decided.spoken_text) is spoken
    assert bool(decided.because) is not spoken
    assert decided.visible_text == "A good morning."  # tags are shown to nobody


def test_nothing_is_spoken_that_is_short_or_has_a_sound_or_that_no_program_could_speak() -> None:
    assert decide_speech(settings(), "Yes.", answers_voice=True).because == "it is too short"
    assert decide_speech(settings(), "A good morning.", answers_voice=True, has_sound=True).because
    assert (
        decide_speech(settings(speakers={}), "A good morning.", answers_voice=True).because
        == "no speech program is configured"
    )
    assert decide_speech(SpeechSettings(), "A good morning.", answers_voice=True).because == "speech is disabled"


@pytest.mark.spec("C97")
def test_a_tag_names_other_words_to_speak_and_sets_only_what_the_owner_lets_it() -> None:
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
def test_what_is_no_whole_tag_stays_as_it_is_written(text: str) -> None:
    assert parse_speech_tags(text).visible_text == text
    assert not parse_speech_tags(text).is_requested


def test_a_text_of_nothing_but_brackets_is_read_to_its_end() -> None:
    text = "[[tts" * 50_000
    assert parse_speech_tags(text).visible_text == text
    assert to_spoken_text("[" * 200_000 + "](") is not None


def test_words_to_speak_have_no_code_no_marks_and_of_an_address_only_its_host() -> None:
    code = "```py\nprint(1)\n```"
    text = f"# Hello\n\n**Bold** and [a page](https://example.com/x).\n{code}\n- see https://a.example/b?c=d now"
    assert to_spoken_text(text) == "Hello\nBold and a page.\nsee a.example now"


def test_what_is_too_long_is_cut_at_the_end_of_a_sentence() -> None:
    assert shorten_speech("One two. Three four. Five six seven", 25) == "One two. Three four."
    assert shorten_speech("abcdefghij" * 10, 20) == "abcdefghij" * 2 + "…"
    assert shorten_speech("short", 20) == "short"


def test_the_program_that_a_tag_names_is_tried_first_and_the_others_after_it() -> None:
    now = settings(speakers={"one": SPEAKS, "two": SPEAKS, "three": SPEAKS})
    assert order_speakers(now, {}) == ("one", "two", "three")
    assert order_speakers(now, {"provider": "three"}) == ("three", "one", "two")
    assert order_speakers(now, {"provider": "unheard"}) == ("one", "two", "three")


# --- what is done ---


async def bare() -> Sandbox:
    return HostSandbox()


def voice(tmp_path: Path, now: SpeechSettings, **more: Any) -> tuple[SpeechPrograms, AttachmentFiles]:
    files = AttachmentFiles(tmp_path / "files")
    more.setdefault("sandbox", bare)
    return SpeechPrograms(lambda: now, files, data_dir=tmp_path, environment={}, **more), files


def content(files: AttachmentFiles, attachment: Attachment) -> str:
    with files.open(attachment.hash) as opened:
        return opened.read().decode()


@pytest.mark.spec("C97")
async def test_an_answer_becomes_a_voice_message_beside_its_words(tmp_path: Path) -> None:
    speech, files = voice(tmp_path, settings())
    uttered = await speech.prepare_reply("A **good** morning.", answers_voice=False)
    assert uttered.text == "A **good** morning."
    assert uttered.voice is not None
    assert (uttered.voice.name, uttered.voice.media_type) == ("voice.ogg", "audio/ogg")
    assert content(files, uttered.voice) == "A good morning."
    assert list((tmp_path / FOLDER).iterdir()) == []


@pytest.mark.spec("C97")
async def test_where_one_program_fails_the_next_is_tried_and_where_all_fail_words_stay_words(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    sleeps = SpeechCommand(command=("/bin/sh", "-c", f"printf x >> {begun}; exec sleep 600"))
    silent = SpeechCommand(command=("/bin/true",))
    links = SpeechCommand(command=("/bin/ln", "-s", "/etc/passwd", "{output}"))
    gone = SpeechCommand(command=("/no/such/program", "{output}"))
    bad = {"breaks": BREAKS, "sleeps": sleeps, "silent": silent, "links": links, "gone": gone, "unset": SpeechCommand()}
    speech, files = voice(tmp_path, settings(speakers={**bad, "works": SPEAKS}, timeout_s=60))
    async with skip_loop_time_on_increase(60, count=lambda: begun.exists() and len(begun.read_text())):
        uttered = await speech.prepare_reply("A good morning.", answers_voice=False)
    assert uttered.voice is not None
    assert content(files, uttered.voice) == "A good morning."
    speech, _ = voice(tmp_path, settings(speakers=bad, timeout_s=60))
    begun.unlink()
    async with skip_loop_time_on_increase(60, count=lambda: begun.exists() and len(begun.read_text())):
        uttered = await speech.prepare_reply("A good morning.", answers_voice=False)
    assert (uttered.text, uttered.voice) == ("A good morning.", None)
    assert uttered.because


@pytest.mark.spec("C97")
async def test_a_long_answer_is_told_in_short_before_it_is_spoken(tmp_path: Path) -> None:
    broken = SpeechCommand(command=("/bin/false",))
    silent = SpeechCommand(command=("/bin/true",))
    counts = SpeechCommand(
        command=("/bin/sh", "-c", 'echo "**Many** sentences: $(wc -c < "$1") to $2."', "sh", "{input}", "{chars}")
    )
    tellers = {"broken": broken, "silent": silent, "counts": counts}
    speech, files = voice(tmp_path, settings(summarisers=tellers))
    uttered = await speech.prepare_reply(LONG, answers_voice=False)
    assert uttered.voice is not None
    assert content(files, uttered.voice) == f"Many sentences: {len(LONG.strip())} to 1500."
    assert uttered.text == LONG
    brief = await speech.prepare_reply("A good morning.", answers_voice=False)
    assert brief.voice is not None and content(files, brief.voice) == "A good morning."


@pytest.mark.spec("C97")
@pytest.mark.parametrize(("more", "most"), [({}, 1_500), ({"summarise": False}, 4_096)])
async def test_a_long_answer_that_nobody_tells_in_short_is_spoken_to_its_bound(
    tmp_path: Path, more: dict[str, Any], most: int
) -> None:
    tellers = {"broken": SpeechCommand(command=("/bin/false",))}
    speech, files = voice(tmp_path, settings(summarisers=tellers, **more))
    uttered = await speech.prepare_reply(LONG, answers_voice=False)
    assert uttered.voice is not None
    said = content(files, uttered.voice)
    assert most // 2 < len(said) <= most
    assert said.endswith(".")


async def test_a_voice_that_an_agent_chose_reaches_the_program_as_part_of_one_word(tmp_path: Path) -> None:
    says = SpeechCommand(command=("/bin/echo", "--voice={voice}", "{model}"), voice="alloy", model="{input}")
    speech, files = voice(tmp_path, settings(SpeechMode.TAGGED, speakers={"says": says}, overrides=("voice",)))
    uttered = await speech.prepare_reply("[[tts:voice=nova]] A good morning.", answers_voice=False)
    assert uttered.voice is not None
    assert content(files, uttered.voice) == "--voice=nova {input}\n"


async def test_nothing_is_run_bare_where_no_sandbox_holds(tmp_path: Path) -> None:
    async def none() -> Sandbox:
        raise SandboxFailed("it was not begun", because="no sandbox works here")

    speech, _ = voice(tmp_path, settings(), sandbox=none)
    assert (await speech.prepare_reply("A good morning.", answers_voice=False)).voice is None


@pytest.mark.spec("C97")
async def test_a_voice_message_is_heard_by_the_first_program_that_can_tell_its_words(tmp_path: Path) -> None:
    silent = SpeechCommand(command=("/bin/true",))
    writes = SpeechCommand(command=("/bin/cp", "{input}", "{output}"), ending="txt")
    speech, files = voice(tmp_path, SpeechSettings(listeners={"a": BREAKS, "b": silent, "c": writes}))
    came = files.store([b" Buy some milk. "], name="voice.oga", media_type="audio/ogg")
    assert await speech.transcribe(came) == "Buy some milk."
    speech, _ = voice(tmp_path, SpeechSettings(listeners={"a": HEARS}))
    assert await speech.transcribe(came) == "Buy some milk."


async def test_what_is_no_voice_or_too_large_or_by_nobody_heard_gives_no_words(tmp_path: Path) -> None:
    speech, files = voice(tmp_path, SpeechSettings(listeners={"a": HEARS}, audio_bytes_max=1_024))
    picture = files.store([b"picture"], name="a.png", media_type="image/png")
    large = files.store([b"x" * 2_000], name="a.ogg", media_type="audio/ogg")
    assert [await speech.transcribe(each) for each in (picture, large)] == ["", ""]
    speech, _ = voice(tmp_path, SpeechSettings())
    assert await speech.transcribe(large) == ""
