"""Builds the agent loop of a test server from given models and settings."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from zoneinfo import ZoneInfo

from retinue.config import Settings
from retinue.domain.ports import Clock
from retinue.models.base import AttachmentReader, Model
from retinue.models.model_router import ModelRouter
from retinue.runners.base import LoadRunResources
from retinue.runners.loop import ToolLoop
from retinue.runners.model_call import ModelCaller
from retinue.runners.session_options import ConfiguredOptions
from retinue.store.core.connection import Store
from retinue.tools.toolbox import Toolbox


class LoopParts:
    """The model router, the agent loop and the session options of a test server.

    `settings` may be replaced while the server is running.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        models: Sequence[Model],
        toolbox: Toolbox,
        zone: ZoneInfo,
        *,
        settings: Settings | None = None,
        environment: Mapping[str, str] | None = None,
        media: AttachmentReader | None = None,
        equip: LoadRunResources | None = None,
        seed: int = 0,
    ) -> None:
        nowhere = Path("/nowhere")
        self.settings = settings or Settings(home=nowhere, store=nowhere / "retinue.db", zone=zone)
        self.models = ModelRouter(
            store,
            clock,
            models,
            settings=lambda: self.settings,
            environment=environment or {},
            random=random.Random(seed),
            zone=zone,
        )
        asker = ModelCaller(self.models, clock, zone, media=media)
        self.loop = ToolLoop(asker, toolbox, equip)
        self.options = ConfiguredOptions(self.models, toolbox, clock, asker.shortened_counts)
