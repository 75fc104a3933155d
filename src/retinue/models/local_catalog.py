"""The local models: the bundled one of the extra `local`, and every GGUF file in the settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.config.models import ModelSettings
from retinue.domain.model import ModelRef
from retinue.domain.ports import Clock, Ids
from retinue.models.base import WireCache
from retinue.models.local_weights import Weights, bundled
from retinue.models.provider_http import Link

if TYPE_CHECKING:
    from retinue.models.local_model import Local


class Locals:
    """Local models, one process per file, started at the first request."""

    def __init__(self, clock: Clock, ids: Ids, link: Link, cache: WireCache, environment: Mapping[str, str]) -> None:
        self._clock = clock
        self._ids = ids
        self._link = link
        self._cache = cache
        self._environment = environment
        self._made: dict[str, tuple[Weights, Local]] = {}

    def installed(self) -> tuple[Local, ...]:
        """Return the bundled model, if its weights are installed."""
        return (self._of("", Weights()),) if bundled() is not None else ()

    def find(self, ref: ModelRef, entry: ModelSettings) -> Local:
        """Return the model in a file. A new one is created only if its settings have changed."""
        weights = Weights(
            gguf=Path(ref.model),
            window_tokens=entry.window_tokens,
            output_tokens_max=entry.output_tokens_max,
            tools=entry.tools,
            params=entry.params,
        )
        return self._of(ref.model, weights)

    async def close(self) -> None:
        for _, local in self._made.values():
            await local.close()

    def _of(self, name: str, weights: Weights) -> Local:
        kept = self._made.get(name)
        if kept is None or kept[0] != weights:
            from retinue.models.local_model import Local  # few instances use one

            local = Local(
                weights,
                clock=self._clock,
                ids=self._ids,
                link=self._link,
                cache=self._cache,
                environment=self._environment,
            )
            kept = self._made[name] = (weights, local)  # a replaced model stops by its idle timeout
        return kept[1]
