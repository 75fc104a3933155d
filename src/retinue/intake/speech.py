"""Transcribes inbound voice messages, and converts some answers to speech, with programs that the owner configures.

If no program succeeds, the answer is sent only as text, and the reason is logged.
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
from retinue.domain.storable_text import make_storable
from retinue.policy import speech
from retinue.sandbox.base import Confinement, NetworkAccess, Sandbox
from retinue.sandbox.single_command import OwnerCommandFailed, run_command
from retinue.store.envelopes.attachment_files import AttachmentFiles

log = logging.getLogger(__name__)

FOLDER = "speech"  # in the data directory: input and output files of the programs
TRANSCRIPT_BYTES_MAX = 64 * 1024
STDOUT_BYTES_MAX = 64 * 1024  # bytes of stdout of a program that writes a file
FILE_STEM = "voice"


class VoiceReply(Struct, frozen=True, kw_only=True):
    """An outbound answer: the visible text, and a voice message or the reason why there is none."""

    text: str
    voice: Attachment | None = None
    because: str = ""


def is_voice(attachment: Attachment) -> bool:
    return attachment.media_type.startswith("audio/")


class SpeechPrograms:
    """Runs the owner's speech programs. `sandbox` opens the sandbox in which they run; see `sandbox/owner_sandbox`."""

    def __init__(
        self,
        settings: Callable[[], SpeechSettings],
        files: AttachmentFiles,
        *,
        data_dir: Path,
        sandbox: Callable[[], Awaitable[Sandbox]],
        environment: Mapping[str, str],
    ) -> None:
        self._settings = settings
        self._files = files
        self._data_dir = data_dir
        self._sandbox = sandbox
        self._environment = environment

    async def prepare_reply(self, text: str, *, answers_voice: bool, has_sound: bool = False) -> VoiceReply:
        """Return what to send as an answer: the text without speech tags, and a voice message if one is needed."""
        settings = self._settings()
        decided = speech.decide_speech(settings, text, answers_voice=answers_voice, has_sound=has_sound)
        if not decided.spoken_text:
            return VoiceReply(text=decided.visible_text, because=decided.because)
        words = await self._shorten(settings, decided)
        voice = await self.synthesize(words, overrides=decided.overrides)
        return VoiceReply(
            text=decided.visible_text, voice=voice, because="" if voice else "no speech program succeeded"
        )

    async def prepare_answer(self, text: str, answers_voice: bool) -> tuple[str, Attachment | None]:
        """Do the same as `prepare_reply`, with the signature that the engine needs."""
        made = await self.prepare_reply(text, answers_voice=answers_voice)
        return made.text, made.voice

    async def synthesize(self, text: str, *, overrides: Mapping[str, str] | None = None) -> Attachment | None:
        """Return a voice message with this text, or None if no program succeeds. Programs are tried in order."""
        settings, wishes = self._settings(), overrides or {}
        for name in speech.order_speakers(settings, wishes):
            command = settings.speakers[name]
            own = {"voice": command.voice, "speed": command.speed, "model": command.model}
            wished = {key: wishes.get(key, value) for key, value in own.items()}
            try:
                sound = await self._run(command, text.encode(), wished, bytes_max=settings.audio_bytes_max)
                if not sound:
                    raise OwnerCommandFailed(command.command, because="its output is empty")
                named = f"{FILE_STEM}.{command.file_extension}"
                keep = self._files.store
                return await asyncio.to_thread(keep, [sound], name=named, media_type=command.media_type)
            except (RetinueError, OSError) as error:
                _log_failure("speech synthesis failed", name, error)
        return None

    async def transcribe(self, attachment: Attachment) -> str:
        """Return the transcript of a voice message, or an empty string if no program succeeds.

        Programs are tried in order.
        """
        settings = self._settings()
        if not is_voice(attachment) or attachment.size_bytes > settings.audio_bytes_max:
            return ""
        for name, command in settings.listeners.items():
            try:
                output = await self._run(command, attachment, {}, bytes_max=TRANSCRIPT_BYTES_MAX)
                if text := make_storable(output.decode(errors="replace")).strip():
                    return text
            except (RetinueError, OSError) as error:
                _log_failure("transcription failed", name, error)
        return ""

    async def _shorten(self, settings: SpeechSettings, decided: speech.SpeechDecision) -> str:
        if not decided.needs_summary:
            return speech.shorten_speech(decided.spoken_text, settings.text_chars_max)
        if settings.summarize and (short := await self._summarize(settings, decided.spoken_text)):
            return speech.shorten_speech(short, settings.text_chars_max)
        most = settings.text_chars_max
        return speech.shorten_speech(
            decided.spoken_text, min(most, settings.summarize_over_chars) if settings.summarize else most
        )

    async def _summarize(self, settings: SpeechSettings, text: str) -> str:
        """Return a summary of text that is too long to speak. Programs are tried in order until one succeeds.

        Returns an empty string if none succeeds. The caller then speaks the beginning of the text.
        """
        wished = {"chars": str(settings.summarize_over_chars)}
        for name, command in settings.summarizers.items():
            try:
                output = await self._run(command, text.encode(), wished, bytes_max=TRANSCRIPT_BYTES_MAX)
                if short := speech.to_spoken_text(make_storable(output.decode(errors="replace"))):
                    return short
            except (RetinueError, OSError) as error:
                _log_failure("summary failed", name, error)
        return ""

    async def _run(
        self, command: SpeechCommand, input_data: bytes | Attachment, values: Mapping[str, str], *, bytes_max: int
    ) -> bytes:
        """Run a speech program in a temporary directory.

        Returns the content of the file `{output}` if the command names it, or else stdout.
        """
        if not command.command:
            raise OwnerCommandFailed(command.command, because="`command` is not set")
        settings = self._settings()
        folder = await asyncio.to_thread(self._make_folder)
        try:
            source, target = folder / "input", folder / f"output.{command.file_extension}"
            await asyncio.to_thread(self._write_input, source, input_data)
            argv = _build_argv(command.command, {**values, "input": str(source), "output": str(target)})
            writes = any("{output}" in word for word in command.command)
            reads = any("{input}" in word for word in command.command)
            confinement = Confinement(
                folder=folder,
                writable=(folder,),
                readable=tuple(self._data_dir / Path(each).expanduser() for each in command.readable),
                network=NetworkAccess(hosts=command.hosts) if command.hosts else None,
                environment={key: value.read(self._environment) for key, value in command.env.items()},
            )
            output = await run_command(
                await self._sandbox(),
                argv,
                confinement,
                input_data=b"" if reads else await asyncio.to_thread(source.read_bytes),
                timeout_s=settings.timeout_s,
                bytes_max=STDOUT_BYTES_MAX if writes else bytes_max,
            )
            if not writes:
                return output
            return await asyncio.to_thread(_read_output, target, argv, bytes_max=bytes_max)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _make_folder(self) -> Path:
        parent = self._data_dir / FOLDER
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=parent.resolve()))

    def _write_input(self, path: Path, input_data: bytes | Attachment) -> None:
        if isinstance(input_data, bytes):
            path.write_bytes(input_data)
            return
        with self._files.open(input_data.hash) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)


def _build_argv(template: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Substitute the placeholders in a command.

    Each value stays one argument, and placeholders in values are not replaced.
    """
    made: list[str] = []
    for word in template:
        for key in ("input", "output", "voice", "speed", "model", "chars"):
            if word == f"{{{key}}}" or f"{{{key}}}" in word:
                word = word.replace(f"{{{key}}}", values.get(key, ""))
                break  # one per argument: a substituted value is not searched again
        made.append(word)
    return made


def _read_output(path: Path, argv: Sequence[str], *, bytes_max: int) -> bytes:
    """Read a program's output file safely. The program may have created a symlink or a file of any size."""
    if path.is_symlink() or not path.is_file():
        raise OwnerCommandFailed(argv, because="{output} does not exist, or is not a regular file")
    with path.open("rb") as opened:
        data = opened.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise OwnerCommandFailed(argv, because=f"{{output}} has more than {bytes_max:,} bytes")
    return data


def _log_failure(phrase: str, name: str, error: BaseException) -> None:
    because = error.because if isinstance(error, RetinueError) else type(error).__name__
    log.warning(phrase, extra={"program": name, "because": because[:300]})
