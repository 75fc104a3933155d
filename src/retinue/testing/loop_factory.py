"""Builds the agent loop of a test server from given models and settings."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from zoneinfo import ZoneInfo

from retinue.config import Settings
from retinue.domain.ports import Clock
from retinue.models.base import Media, Model
from retinue.models.model_router import Minds
from retinue.runners.base import Equip
from retinue.runners.loop import Loop
from retinue.runners.model_call import Asker
from retinue.runners.session_options import HouseChoices
from retinue.store.core.connection import Store
from retinue.tools.toolbox import Toolbox


class Thinking:
    """The model router, the agent loop and the session options of a test server.

    `settings` may be replaced while the server runs.
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
        media: Media | None = None,
        equip: Equip | None = None,
        seed: int = 0,
    ) -> None:
        nowhere = Path("/nowhere")
        self.settings = settings or Settings(home=nowhere, store=nowhere / "house.db", zone=zone)
        self.minds = Minds(
            store,
            clock,
            models,
            settings=lambda: self.settings,
            environment=environment or {},
            chance=random.Random(seed),
            zone=zone,
        )
        asker = Asker(self.minds, clock, zone, media=media)
        self.loop = Loop(asker, toolbox, equip)
        self.choices = HouseChoices(self.minds, toolbox, clock, asker.shortened)
