"""Builds the parts that run the owner's programs: hooks, speech synthesis and transcription.

Few instances use such programs, so their code is imported on first use.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agents.hook_runner import HookEvent, HookRunner
from retinue.agents.hooks import Hook
from retinue.agents.skill_loader import gather_host_facts
from retinue.config import Settings
from retinue.config.speech import SpeechMode
from retinue.domain.attachment import Attachment
from retinue.policy.speech import parse_speech_tags
from retinue.sandbox.base import Sandbox
from retinue.store.core.connection import Store
from retinue.store.envelopes.attachment_files import AttachmentFiles

if TYPE_CHECKING:
    from retinue.intake.speech import SpeechPrograms
    from retinue.sandbox.owner_sandbox import OwnerSandbox


class OwnerPrograms:
    """Runs hooks and speech programs. `settings` returns the current settings; `send_message` sends hook messages."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        store: Store,
        files: AttachmentFiles,
        *,
        data_dir: Path,
        environment: Mapping[str, str],
        send_message: Callable[[HookEvent, Hook, str], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._files = files
        self._data_dir = data_dir
        self._environment = environment
        self.hooks = HookRunner(
            data_dir,
            store,
            settings=lambda: settings().hooks,
            host_facts=lambda: gather_host_facts(settings(), environment),
            get_sandbox=self._get_sandbox,
            send_message=send_message,
        )

    async def start(self) -> None:
        """Start the hooks, if they are enabled."""
        if self._settings().hooks.enabled:
            await self.hooks.start()

    def notify_started(self, at: datetime) -> None:
        if self._settings().hooks.enabled:
            self.hooks.notify_started(at)

    async def stop(self) -> None:
        await self.hooks.stop()

    # --- speech ---

    async def speak(self, text: str, answers_voice: bool) -> tuple[str, Attachment | None]:
        """Return an answer without its speech tags, and a voice message if the settings require one."""
        if self._settings().speech.mode is SpeechMode.OFF:
            return parse_speech_tags(text).visible_text, None
        return await self._speech.prepare_answer(text, answers_voice)

    async def transcribe(self, attachment: Attachment) -> str:
        """Return the transcript of a voice message, or an empty string if no transcriber is configured."""
        return await self._speech.transcribe(attachment) if self._settings().speech.listeners else ""

    @cached_property
    def _speech(self) -> SpeechPrograms:
        from retinue.intake.speech import SpeechPrograms

        return SpeechPrograms(
            lambda: self._settings().speech,
            self._files,
            data_dir=self._data_dir,
            sandbox=self._get_sandbox,
            environment=self._environment,
        )

    async def _get_sandbox(self) -> Sandbox:
        return await self._owner_sandbox()

    @cached_property
    def _owner_sandbox(self) -> OwnerSandbox:
        from retinue.sandbox.owner_sandbox import OwnerSandbox

        person = Path(os.path.realpath(Path.home()))
        return OwnerSandbox(lambda: self._settings().sandbox, data_directory=self._data_dir, user_home=person)
