"""The models of this machine: the one that comes with the extra `local`, and every GGUF file the settings name."""

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
    """One process for each file, begun when it is first asked."""

    def __init__(self, clock: Clock, ids: Ids, link: Link, cache: WireCache, environment: Mapping[str, str]) -> None:
        self._clock = clock
        self._ids = ids
        self._link = link
        self._cache = cache
        self._environment = environment
        self._made: dict[str, tuple[Weights, Local]] = {}

    def installed(self) -> tuple[Local, ...]:
        """The one that comes with the extra, where its weights are here."""
        return (self._of("", Weights()),) if bundled() is not None else ()

    def find(self, ref: ModelRef, entry: ModelSettings) -> Local:
        """The model in a file. It is another one only where the settings say something else of it."""
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
            from retinue.models.local_model import Local  # few houses have one

            local = Local(
                weights,
                clock=self._clock,
                ids=self._ids,
                link=self._link,
                cache=self._cache,
                environment=self._environment,
            )
            kept = self._made[name] = (weights, local)  # one that is replaced ends by itself, when nobody asks it
        return kept[1]
