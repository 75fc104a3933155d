"""Decides whether an answer is spoken, and which text is spoken.

An agent can request speech with tags, which are always removed from the visible text:

    [[tts]]                                    speak this answer
    [[tts:voice=alloy]]                        speak it with this voice
    [[tts:text]]Good morning![[/tts:text]]     speak this text instead
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from retinue.config.speech import SpeechMode, SpeechSettings

OVERRIDE_KEYS = frozenset({"provider", "voice", "speed", "model"})
VALUE_CHARS_MAX = 64
TAGS_MAX = 16

_OPEN, _CLOSE, _END = "[[tts", "]]", "[[/tts:text]]"
# A value cannot begin with a dash, so a speech program cannot take it for an option.
_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
# Each pattern reads a limited number of characters per match, so text full of brackets takes linear time.
_FENCE = re.compile(r"^ {0,3}(```|~~~)")
_LINK = re.compile(r"!?\[([^\[\]\n]{0,500})\]\(([^()\s]{0,2000})\)")
_URL = re.compile(r"\bhttps?://([^\s/<>]{1,253})\S{0,2000}")
_HEADING = re.compile(r"^ {0,3}#{1,6} +|^ {0,3}> ?|^ {0,8}[-*+] +", re.MULTILINE)
_MARKS = re.compile(r"\*{1,3}|_{2}|~~|`{1,3}")
_SENTENCE_ENDS = (". ", "! ", "? ", ".\n", "!\n", "?\n", "\n\n")


class SpeechTags(Struct, frozen=True, kw_only=True):
    """The speech tags of an answer, and the answer without them.

    `visible_text` is the answer without its tags. `is_requested` means that it had at least one tag.
    If `spoken_text` is set, it is spoken instead of the answer.
    """

    visible_text: str
    is_requested: bool = False
    spoken_text: str = ""
    overrides: Mapping[str, str] = {}


class SpeechDecision(Struct, frozen=True, kw_only=True):
    """The decision for one answer. If the answer is not spoken, `spoken_text` is empty and `because` is the reason."""

    visible_text: str
    spoken_text: str = ""
    needs_summary: bool = False  # the text is too long, and is to be summarized before it is spoken
    overrides: Mapping[str, str] = {}
    because: str = ""


def parse_speech_tags(text: str) -> SpeechTags:
    """Extract the speech tags from an answer. An incomplete tag stays in the text."""
    shown: list[str] = []
    spoken: list[str] = []
    overrides: dict[str, str] = {}
    at, tags = 0, 0
    while tags < TAGS_MAX and (begin := text.find(_OPEN, at)) >= 0:
        close = text.find(_CLOSE, begin, begin + len(_OPEN) + 2 * VALUE_CHARS_MAX + 4)
        inside = text[begin + len(_OPEN) : close] if close >= 0 else None
        end = close + len(_CLOSE)
        if inside == ":text":
            stop = text.find(_END, end)
            shown.append(text[at:begin])
            spoken.append(text[end : stop if stop >= 0 else len(text)])
            at = stop + len(_END) if stop >= 0 else len(text)
        elif inside is not None and (set_to := _parse_overrides(inside)) is not None:
            shown.append(text[at:begin])
            overrides |= set_to
            at = end
        else:
            shown.append(text[at : begin + len(_OPEN)])
            at = begin + len(_OPEN)
            continue
        tags += 1
    shown.append(text[at:])
    if not tags:
        return SpeechTags(visible_text=text)
    return SpeechTags(
        visible_text="".join(shown).strip(),
        is_requested=True,
        spoken_text="\n".join(spoken).strip(),
        overrides=overrides,
    )


def _parse_overrides(inside: str) -> dict[str, str] | None:
    """Parse the text inside `[[tts` and `]]`: return the settings that it overrides, or None if it is not valid."""
    if not inside:
        return {}
    key, equals, value = inside.removeprefix(":").partition("=")
    good = inside.startswith(":") and equals and key.isidentifier() and _VALUE.fullmatch(value)
    return {key: value} if good else None


def decide_speech(
    settings: SpeechSettings, text: str, *, answers_voice: bool, has_sound: bool = False
) -> SpeechDecision:
    """Decide whether an answer is spoken.

    `answers_voice` means that the answer replies to a voice message. `has_sound` means that the
    answer already has an audio attachment.
    """
    tagged = parse_speech_tags(text)
    wanted = {
        SpeechMode.OFF: False,
        SpeechMode.ALWAYS: True,
        SpeechMode.INBOUND: answers_voice,
        SpeechMode.TAGGED: tagged.is_requested,
    }[settings.mode]
    because = ""
    words = to_spoken_text(tagged.spoken_text or tagged.visible_text)
    if settings.mode is SpeechMode.OFF:
        because = "speech is disabled"
    elif not settings.speakers:
        because = "no speech program is configured"
    elif not wanted:
        because = "it does not answer a voice message" if settings.mode is SpeechMode.INBOUND else "it is not tagged"
    elif has_sound:
        because = "it already has audio"
    elif len(words) < settings.text_chars_min:
        because = "it is too short"
    if because:
        return SpeechDecision(visible_text=tagged.visible_text, because=because)
    permitted = OVERRIDE_KEYS.intersection(settings.overrides)
    return SpeechDecision(
        visible_text=tagged.visible_text,
        spoken_text=words,
        needs_summary=len(words) > settings.summarize_over_chars,
        overrides={key: value for key, value in tagged.overrides.items() if key in permitted},
    )


def order_speakers(settings: SpeechSettings, overrides: Mapping[str, str]) -> tuple[str, ...]:
    """Return the speech programs to try, in the order of the settings. A program that a tag names comes first."""
    names = tuple(settings.speakers)
    first = overrides.get("provider", "")
    return (first, *(name for name in names if name != first)) if first in settings.speakers else names


def to_spoken_text(text: str) -> str:
    """Return the text to read aloud: without code and markup, and with only the host of a URL."""
    kept: list[str] = []
    fence = ""
    for line in text.splitlines():
        found = _FENCE.match(line)
        if found and not fence:
            fence = found[1]
        elif fence:
            fence = "" if found and found[1] == fence else fence
        else:
            kept.append(line)
    plain = _LINK.sub(r"\1", "\n".join(kept))
    plain = _URL.sub(r"\1", plain)
    plain = _MARKS.sub("", _HEADING.sub("", plain))
    return "\n".join(line.strip() for line in plain.splitlines() if line.strip())


def shorten_speech(text: str, chars_max: int) -> str:
    """Cut the text to `chars_max` characters.

    If at least one sentence ends in the second half of these characters, the text is cut after the
    last such sentence.
    """
    if len(text) <= chars_max:
        return text
    head = text[:chars_max]
    end = max(head.rfind(mark) for mark in _SENTENCE_ENDS)
    return head[: end + 1].strip() if end > chars_max // 2 else head.rstrip() + "…"
