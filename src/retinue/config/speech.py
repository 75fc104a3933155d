"""Speech: programs that convert voice messages to text and text to voice messages. None by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

from retinue.config.secret import SecretReference
from retinue.config.setting_metadata import SettingEffect, setting
from retinue.config.skills import VariableValue, check_env_name

MIB = 1024 * 1024


class SpeechMode(StrEnum):
    """Which answers are spoken."""

    OFF = "off"
    ALWAYS = "always"
    INBOUND = "inbound"  # when it answers a voice message
    TAGGED = "tagged"  # when the agent requests it with a tag


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechCommand:
    """A program that speaks, transcribes or summarizes. It runs in the sandbox, without a shell."""

    command: tuple[str, ...] = setting(
        (),
        "Program and its arguments. `{input}` is the file to read and `{output}` the file to write. A "
        "speaker also has `{voice}`, `{speed}` and `{model}`, and a summarizer has `{chars}`. Without `{input}`, the "
        "program reads standard input. Without `{output}`, the server reads its standard output.",
        effect=SettingEffect.MESSAGE,
        example="piper",
    )
    media_type: str = setting(
        "audio/ogg", "Media type of the audio that a speaker writes.", effect=SettingEffect.MESSAGE
    )
    file_extension: str = setting(
        "ogg", "File name extension of the audio that a speaker writes.", effect=SettingEffect.MESSAGE
    )
    voice: str = setting("", "Value of `{voice}` in `command`.", effect=SettingEffect.MESSAGE)
    speed: str = setting("1.0", "Value of `{speed}` in `command`.", effect=SettingEffect.MESSAGE)
    model: str = setting("", "Value of `{model}` in `command`.", effect=SettingEffect.MESSAGE)
    hosts: tuple[str, ...] = setting(
        (), "Hosts that the program may reach. Default: no network.", effect=SettingEffect.MESSAGE
    )
    readable: tuple[str, ...] = setting(
        (), "Folders that the program may read, such as the folder of its voices.", effect=SettingEffect.MESSAGE
    )
    env: Mapping[str, VariableValue | SecretReference] = setting(
        cast("Mapping[str, VariableValue | SecretReference]", {}),
        "Environment variables of the program.",
        effect=SettingEffect.MESSAGE,
        check=check_env_name,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechSettings:
    """Voice messages in both directions, through programs that you provide."""

    mode: SpeechMode = setting(
        SpeechMode.OFF,
        "Which answers are spoken: none (`off`), all (`always`), answers to voice messages (`inbound`), or those that "
        "the agent tags (`tagged`).",
        effect=SettingEffect.MESSAGE,
    )
    speakers: Mapping[str, SpeechCommand] = field(default_factory=dict[str, SpeechCommand])
    listeners: Mapping[str, SpeechCommand] = field(default_factory=dict[str, SpeechCommand])
    summarizers: Mapping[str, SpeechCommand] = field(default_factory=dict[str, SpeechCommand])
    overrides: tuple[str, ...] = setting(
        (),
        "What a tag in an agent's answer may override: `provider`, `voice`, `speed`, `model`.",
        effect=SettingEffect.MESSAGE,
        example="voice",
    )
    summarize: bool = setting(
        True,
        "Whether a long answer is summarized before it is spoken. Without a summarizer, its beginning is spoken.",
        effect=SettingEffect.MESSAGE,
    )
    summarize_over_chars: int = setting(
        1_500,
        "Length above which an answer is summarized, in characters.",
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
        10, "Minimum length of a spoken answer, in characters.", effect=SettingEffect.MESSAGE, least=0, most=1_000
    )
    timeout_s: float = setting(
        30.0, "Maximum duration of one program, in seconds.", effect=SettingEffect.MESSAGE, least=0.1, most=600
    )
    audio_bytes_max: int = setting(
        25 * MIB,
        "Maximum size of an inbound or outbound voice message, in bytes.",
        effect=SettingEffect.MESSAGE,
        least=1024,
        most=1024 * MIB,
    )
