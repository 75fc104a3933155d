"""Builds the parts that run the owner's programs: hooks, and text to speech and back.

Few instances have any, so their code is imported on first use.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agents.hook_runner import Happened, Hooks
from retinue.agents.hooks import Hook
from retinue.agents.skill_loader import surroundings
from retinue.config import Settings
from retinue.config.speech import SpeechMode
from retinue.domain.attachment import Attachment
from retinue.policy.speech import read_tags
from retinue.sandbox.base import Sandbox
from retinue.store.core.connection import Store
from retinue.store.envelopes.attachment_files import Files

if TYPE_CHECKING:
    from retinue.intake.speech import Speech
    from retinue.sandbox.owner_sandbox import OwnersSandbox


class Programs:
    """The owner's programs. `settings` returns the current settings; `send_message` delivers a hook's message."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        store: Store,
        files: Files,
        *,
        home: Path,
        environment: Mapping[str, str],
        say: Callable[[Happened, Hook, str], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._files = files
        self._home = home
        self._environment = environment
        self.hooks = Hooks(
            home,
            store,
            settings=lambda: settings().hooks,
            here=lambda: surroundings(settings(), environment),
            sandbox=self._sandbox,
            say=say,
        )

    async def start(self) -> None:
        """Start the hooks, if they are enabled."""
        if self._settings().hooks.enabled:
            await self.hooks.start()

    def opened(self, at: datetime) -> None:
        if self._settings().hooks.enabled:
            self.hooks.opened(at)

    async def stop(self) -> None:
        await self.hooks.stop()

    # --- speech ---

    async def speak(self, text: str, answers_voice: bool) -> tuple[str, Attachment | None]:
        """Return an answer without its speech tags, and the spoken answer if the settings ask for it."""
        if self._settings().speech.mode is SpeechMode.OFF:
            return read_tags(text).shown, None
        return await self._speech.answered(text, answers_voice)

    async def hear(self, attachment: Attachment) -> str:
        """Return the transcript of a voice message; an empty string if no transcriber is configured."""
        return await self._speech.heard(attachment) if self._settings().speech.listeners else ""

    @cached_property
    def _speech(self) -> Speech:
        from retinue.intake.speech import Speech

        return Speech(
            lambda: self._settings().speech,
            self._files,
            home=self._home,
            sandbox=self._sandbox,
            environment=self._environment,
        )

    async def _sandbox(self) -> Sandbox:
        return await self._walls()

    @cached_property
    def _walls(self) -> OwnersSandbox:
        from retinue.sandbox.owner_sandbox import OwnersSandbox

        person = Path(os.path.realpath(Path.home()))
        return OwnersSandbox(lambda: self._settings().sandbox, home=self._home, user_home=person)
