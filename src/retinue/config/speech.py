"""Speech: programs that convert voice messages to text and text to voice messages. By default, none are set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

from retinue.config.secret import SecretReference
from retinue.config.setting_metadata import SettingEffect, SettingRule, setting
from retinue.config.skills import VariableValue, check_env_name

MIB = 1024 * 1024


class SpeechMode(StrEnum):
    """Which answers are sent as speech."""

    OFF = "off"
    ALWAYS = "always"
    INBOUND = "inbound"  # when it answers a voice message
    TAGGED = "tagged"  # when the agent requests it with a tag


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechCommand:
    """A program that converts text to speech, or speech to text, or summarizes text. It runs in the sandbox."""

    command: tuple[str, ...] = setting(
        (),
        "Program and its arguments. `{input}` is replaced by the path of the file to read, `{output}` by the path of "
        "the file to write. For text-to-speech, `{voice}`, `{speed}` and `{model}` are also replaced. For a "
        "summarizer, `{chars}` is replaced by the maximum length. Without `{input}`, the input is on stdin. Without "
        "`{output}`, the server reads stdout.",
        effect=SettingEffect.MESSAGE,
        example="piper",
    )
    media_type: str = setting(
        "audio/ogg",
        "Media type of the audio file that a text-to-speech program creates. Other programs ignore it.",
        effect=SettingEffect.MESSAGE,
    )
    file_extension: str = setting(
        "ogg", "Extension of the output file of the program, without a dot.", effect=SettingEffect.MESSAGE
    )
    voice: str = setting(
        "", "Value that replaces `{voice}` in the `command` of a text-to-speech program.", effect=SettingEffect.MESSAGE
    )
    speed: str = setting(
        "1.0",
        "Value that replaces `{speed}` in the `command` of a text-to-speech program.",
        effect=SettingEffect.MESSAGE,
    )
    model: str = setting(
        "", "Value that replaces `{model}` in the `command` of a text-to-speech program.", effect=SettingEffect.MESSAGE
    )
    hosts: tuple[str, ...] = setting(
        (),
        "Hosts that the program may reach: HOST, *.HOST or HOST:PORT. Default: no network.",
        effect=SettingEffect.MESSAGE,
    )
    readable: tuple[str, ...] = setting(
        (),
        "Folders that the program may read, such as a folder with voices. Default: only system folders.",
        effect=SettingEffect.MESSAGE,
    )
    env: Mapping[str, VariableValue | SecretReference] = setting(
        cast("Mapping[str, VariableValue | SecretReference]", {}),
        "Environment variables of the program, each with its value or the location of a secret.",
        effect=SettingEffect.MESSAGE,
        check=check_env_name,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechSettings:
    """Voice messages: which programs transcribe them, and which answers are sent as speech."""

    mode: SpeechMode = setting(
        SpeechMode.OFF,
        "Which answers are sent as speech: none (`off`), all (`always`), answers to voice messages (`inbound`), or "
        "those in which the agent writes a tag such as `[[tts]]` (`tagged`).",
        effect=SettingEffect.MESSAGE,
    )
    speakers: Mapping[str, SpeechCommand] = field(
        default_factory=dict[str, SpeechCommand],
        metadata={
            "rule": SettingRule(
                description="A program that converts text to speech. If there are several, the first one that succeeds "
                "is used."
            )
        },
    )
    listeners: Mapping[str, SpeechCommand] = field(
        default_factory=dict[str, SpeechCommand],
        metadata={
            "rule": SettingRule(
                description="A program that converts speech to text. If there are several, the first one that succeeds "
                "is used."
            )
        },
    )
    summarizers: Mapping[str, SpeechCommand] = field(
        default_factory=dict[str, SpeechCommand],
        metadata={"rule": SettingRule(description="A program that summarizes long answers before they are spoken.")},
    )
    overrides: tuple[str, ...] = setting(
        (),
        "What an agent may choose with a speech tag in its answer: `provider`, `voice`, `speed`, `model`. Default: "
        "nothing.",
        effect=SettingEffect.MESSAGE,
        example="voice",
    )
    summarize: bool = setting(
        True,
        "Whether a long answer is summarized before it is spoken, by a program in [speech.summarizers]. Otherwise its "
        "beginning is spoken.",
        effect=SettingEffect.MESSAGE,
    )
    summarize_over_chars: int = setting(
        1_500,
        "Length above which an answer is summarized before it is spoken, in characters.",
        effect=SettingEffect.MESSAGE,
        least=50,
        most=100_000,
    )
    text_chars_max: int = setting(
        4_096,
        "Maximum length of a spoken answer, in characters. The rest is left out.",
        effect=SettingEffect.MESSAGE,
        least=50,
        most=100_000,
    )
    text_chars_min: int = setting(
        10,
        "Minimum length of a spoken answer, in characters. A shorter answer is sent as text only.",
        effect=SettingEffect.MESSAGE,
        least=0,
        most=1_000,
    )
    timeout_s: float = setting(
        30.0,
        "Maximum duration of one run of a speech program, in seconds.",
        effect=SettingEffect.MESSAGE,
        least=0.1,
        most=600,
    )
    audio_bytes_max: int = setting(
        25 * MIB,
        "Maximum size of an inbound or outbound voice message, in bytes.",
        effect=SettingEffect.MESSAGE,
        least=1024,
        most=1024 * MIB,
    )
