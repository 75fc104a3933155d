"""Voice messages: transcribes inbound ones and synthesizes some answers, by programs that the owner
configures.

No answer depends on it. If no program succeeds, the answer stays text, and the log says why.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from retinue.config.speech import SpeechCommand, SpeechSettings
from retinue.domain.attachment import Attachment
from retinue.domain.errors import RetinueError
from retinue.domain.storable_text import storable
from retinue.policy import speech
from retinue.sandbox.base import Confinement, Network, Sandbox
from retinue.sandbox.single_command import CommandFailed, run
from retinue.store.envelopes.attachment_files import Files

log = logging.getLogger(__name__)

FOLDER = "speech"  # in the data directory: input and output files of the programs
HEARD_BYTES_MAX = 64 * 1024
SAID_BYTES_MAX = 64 * 1024  # of a program's stdout, if it writes a file
NAME = "voice"


class Uttered(Struct, frozen=True, kw_only=True):
    """An outbound answer: the visible text, and a voice message or the reason why there is none."""

    shown: str
    voice: Attachment | None = None
    because: str = ""


def is_voice(attachment: Attachment) -> bool:
    return attachment.media_type.startswith("audio/")


class Speech:
    """Runs the speech programs. `sandbox` is the one for the owner's programs; see
    `sandbox/owner_sandbox`."""

    def __init__(
        self,
        settings: Callable[[], SpeechSettings],
        files: Files,
        *,
        home: Path,
        sandbox: Callable[[], Awaitable[Sandbox]],
        environment: Mapping[str, str],
    ) -> None:
        self._settings = settings
        self._files = files
        self._home = home
        self._sandbox = sandbox
        self._environment = environment

    async def uttered(self, text: str, *, answers_voice: bool, has_sound: bool = False) -> Uttered:
        """Return what to send for an answer: always its text without tags, and perhaps a voice
        message."""
        settings = self._settings()
        decided = speech.decide(settings, text, answers_voice=answers_voice, has_sound=has_sound)
        if not decided.words:
            return Uttered(shown=decided.shown, because=decided.because)
        words = await self._short(settings, decided)
        voice = await self.spoken(words, overrides=decided.overrides)
        return Uttered(shown=decided.shown, voice=voice, because="" if voice else "no program could speak it")

    async def answered(self, text: str, answers_voice: bool) -> tuple[str, Attachment | None]:
        """As `prepare_reply`, with the signature that the engine needs."""
        made = await self.uttered(text, answers_voice=answers_voice)
        return made.shown, made.voice

    async def spoken(self, text: str, *, overrides: Mapping[str, str] | None = None) -> Attachment | None:
        """A voice message with this text, by the first program that succeeds; None if none does."""
        settings, wishes = self._settings(), overrides or {}
        for name in speech.order(settings, wishes):
            command = settings.speakers[name]
            own = {"voice": command.voice, "speed": command.speed, "model": command.model}
            wished = {key: wishes.get(key, value) for key, value in own.items()}
            try:
                sound = await self._run(command, text.encode(), wished, bytes_max=settings.audio_bytes_max)
                if not sound:
                    raise CommandFailed("it made no sound", because="what it wrote is empty")
                named = f"{NAME}.{command.ending}"
                keep = self._files.keep
                return await asyncio.to_thread(keep, [sound], name=named, media_type=command.media_type)
            except (RetinueError, OSError) as error:
                _log_failure("speaker failed", name, error)
        return None

    async def heard(self, attachment: Attachment) -> str:
        """The transcript of a voice message, by the first program that succeeds; empty if none
        does."""
        settings = self._settings()
        if not is_voice(attachment) or attachment.size_bytes > settings.audio_bytes_max:
            return ""
        for name, command in settings.listeners.items():
            try:
                said = await self._run(command, attachment, {}, bytes_max=HEARD_BYTES_MAX)
                if text := storable(said.decode(errors="replace")).strip():
                    return text
            except (RetinueError, OSError) as error:
                _log_failure("listener failed", name, error)
        return ""

    async def _short(self, settings: SpeechSettings, decided: speech.Speech) -> str:
        if not decided.long:
            return speech.cut(decided.words, settings.text_chars_max)
        if settings.summarise and (short := await self._summarised(settings, decided.words)):
            return speech.cut(short, settings.text_chars_max)
        most = settings.text_chars_max
        return speech.cut(decided.words, min(most, settings.summarise_over_chars) if settings.summarise else most)

    async def _summarised(self, settings: SpeechSettings, words: str) -> str:
        """A summary, by the first program that succeeds. Empty if none does: then the beginning is
        spoken."""
        wished = {"chars": str(settings.summarise_over_chars)}
        for name, command in settings.summarisers.items():
            try:
                said = await self._run(command, words.encode(), wished, bytes_max=HEARD_BYTES_MAX)
                if short := speech.spoken_words(storable(said.decode(errors="replace"))):
                    return short
            except (RetinueError, OSError) as error:
                _log_failure("summariser failed", name, error)
        return ""

    async def _run(
        self, command: SpeechCommand, given: bytes | Attachment, wished: Mapping[str, str], *, bytes_max: int
    ) -> bytes:
        """Run a program in a temporary directory. Returns what it wrote to `{output}` if it has
        one, else its stdout."""
        if not command.command:
            raise CommandFailed("there is no program", because="its `command` is not set")
        settings = self._settings()
        folder = await asyncio.to_thread(self._made)
        try:
            source, target = folder / "input", folder / f"output.{command.ending}"
            await asyncio.to_thread(self._fill, source, given)
            argv = _argv(command.command, {**wished, "input": str(source), "output": str(target)})
            writes = any("{output}" in word for word in command.command)
            reads = any("{input}" in word for word in command.command)
            confinement = Confinement(
                folder=folder,
                writable=(folder,),
                readable=tuple(self._home / Path(each).expanduser() for each in command.readable),
                network=Network(hosts=command.hosts) if command.hosts else None,
                environment={key: value.read(self._environment) for key, value in command.env.items()},
            )
            said = await run(
                await self._sandbox(),
                argv,
                confinement,
                given=b"" if reads else await asyncio.to_thread(source.read_bytes),
                timeout_s=settings.timeout_s,
                bytes_max=SAID_BYTES_MAX if writes else bytes_max,
            )
            return await asyncio.to_thread(_read, target, bytes_max) if writes else said
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _made(self) -> Path:
        parent = self._home / FOLDER
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=parent.resolve()))

    def _fill(self, path: Path, given: bytes | Attachment) -> None:
        if isinstance(given, bytes):
            path.write_bytes(given)
            return
        with self._files.open(given.hash) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)


def _argv(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Substitute the placeholders. A value is never parsed again, and never becomes more than one
    argument."""
    made: list[str] = []
    for word in words:
        for key in ("input", "output", "voice", "speed", "model", "chars"):
            if word == f"{{{key}}}" or f"{{{key}}}" in word:
                word = word.replace(f"{{{key}}}", values.get(key, ""))
                break  # one per argument: a substituted value is not searched again
        made.append(word)
    return made


def _read(path: Path, bytes_max: int) -> bytes:
    """Read a program's output file. It could be a symlink, or of unlimited size."""
    if path.is_symlink() or not path.is_file():
        raise CommandFailed("it wrote nothing", because="its {output} is not there, or is no plain file")
    with path.open("rb") as opened:
        data = opened.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise CommandFailed("it wrote too much", because=f"its {{output}} has more than {bytes_max:,} bytes")
    return data


def _log_failure(phrase: str, name: str, error: BaseException) -> None:
    because = error.because if isinstance(error, RetinueError) else type(error).__name__
    log.warning(phrase, extra={"program": name, "because": because[:300]})
