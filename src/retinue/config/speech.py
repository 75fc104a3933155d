"""Speech: programs that convert voice messages to text and text to voice messages. None by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

from retinue.config.secret import Secret
from retinue.config.setting_metadata import Effect, setting
from retinue.config.skills import Variable, env_name

MIB = 1024 * 1024


class SpeechMode(StrEnum):
    """When an answer is spoken."""

    OFF = "off"
    ALWAYS = "always"
    INBOUND = "inbound"  # when it answers a voice message
    TAGGED = "tagged"  # when the agent requests it with a tag


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechCommand:
    """A program and its settings. It runs without a shell, in the sandbox."""

    command: tuple[str, ...] = setting(
        (),
        "The program and its words. `{input}` stands for the file to read, `{output}` for the one to write; for a "
        "speaker also `{voice}`, `{speed}` and `{model}`, for a summariser `{chars}`. Without `{input}` it is given on "
        "standard input, without `{output}` what it says is taken.",
        effect=Effect.MESSAGE,
        example="piper",
    )
    media_type: str = setting("audio/ogg", "What a speaker writes.", effect=Effect.MESSAGE)
    ending: str = setting("ogg", "How the name of such a file ends.", effect=Effect.MESSAGE)
    voice: str = setting("", "What `{voice}` stands for.", effect=Effect.MESSAGE)
    speed: str = setting("1.0", "What `{speed}` stands for.", effect=Effect.MESSAGE)
    model: str = setting("", "What `{model}` stands for.", effect=Effect.MESSAGE)
    hosts: tuple[str, ...] = setting((), "Hosts that it may reach; none without.", effect=Effect.MESSAGE)
    readable: tuple[str, ...] = setting(
        (), "Folders that it may read, such as that of its voices.", effect=Effect.MESSAGE
    )
    env: Mapping[str, Variable | Secret] = setting(
        cast("Mapping[str, Variable | Secret]", {}), "Variables for it.", effect=Effect.MESSAGE, check=env_name
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechSettings:
    """Voice messages in both directions, through programs that you provide."""

    mode: SpeechMode = setting(
        SpeechMode.OFF, "When answers are spoken: `off`, `always`, `inbound` or `tagged`.", effect=Effect.MESSAGE
    )
    speakers: Mapping[str, SpeechCommand] = field(default_factory=dict[str, SpeechCommand])
    listeners: Mapping[str, SpeechCommand] = field(default_factory=dict[str, SpeechCommand])
    summarisers: Mapping[str, SpeechCommand] = field(default_factory=dict[str, SpeechCommand])
    overrides: tuple[str, ...] = setting(
        (),
        "What an agent's tag may set: `provider`, `voice`, `speed`, `model`.",
        effect=Effect.MESSAGE,
        example="voice",
    )
    summarise: bool = setting(
        True,
        "Whether a long answer is told in short before it is spoken: by a summariser, and else by its beginning.",
        effect=Effect.MESSAGE,
    )
    summarise_over_chars: int = setting(
        1_500, "How long an answer is spoken as it stands.", effect=Effect.MESSAGE, least=50, most=100_000
    )
    text_chars_max: int = setting(
        4_096, "What is spoken at most; the rest is left out.", effect=Effect.MESSAGE, least=50, most=100_000
    )
    text_chars_min: int = setting(10, "Shorter answers are not spoken.", effect=Effect.MESSAGE, least=0, most=1_000)
    timeout_s: float = setting(30.0, "How long one program may take.", effect=Effect.MESSAGE, least=0.1, most=600)
    audio_bytes_max: int = setting(
        25 * MIB, "The largest voice message, in or out.", effect=Effect.MESSAGE, least=1024, most=1024 * MIB
    )
