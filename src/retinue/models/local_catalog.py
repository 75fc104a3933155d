"""Finds the local models: the model that the extra `local` installs, and every GGUF file in the settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.config.models import ModelEntry
from retinue.domain.model import ModelRef
from retinue.domain.ports import Clock, IdSource
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.local_weights import LocalWeights, find_bundled_weights
from retinue.models.provider_http import ProviderConnections

if TYPE_CHECKING:
    from retinue.models.local_model import LocalModel


class LocalModels:
    """Holds the local models. Each file has its own process, which starts at the first request."""

    def __init__(
        self,
        clock: Clock,
        ids: IdSource,
        connections: ProviderConnections,
        cache: EncodedContextCache,
        environment: Mapping[str, str],
    ) -> None:
        self._clock = clock
        self._ids = ids
        self._connections = connections
        self._cache = cache
        self._environment = environment
        self._models: dict[str, tuple[LocalWeights, LocalModel]] = {}

    def list_installed(self) -> tuple[LocalModel, ...]:
        """Return the bundled model if its weights are installed, else nothing."""
        return (self._get_or_create("", LocalWeights()),) if find_bundled_weights() is not None else ()

    def find(self, ref: ModelRef, entry: ModelEntry) -> LocalModel:
        """Return the local model that an entry of the settings describes.

        A new object is created only if the settings of the model have changed.
        """
        weights = LocalWeights(
            gguf=Path(ref.model),
            window_tokens=entry.window_tokens,
            output_tokens_max=entry.output_tokens_max,
            tools=entry.tools,
            params=entry.params,
        )
        return self._get_or_create(ref.model, weights)

    async def close(self) -> None:
        for _, local in self._models.values():
            await local.close()

    def _get_or_create(self, name: str, weights: LocalWeights) -> LocalModel:
        kept = self._models.get(name)
        if kept is None or kept[0] != weights:
            from retinue.models.local_model import LocalModel  # few instances use one

            local = LocalModel(
                weights,
                clock=self._clock,
                ids=self._ids,
                connections=self._connections,
                cache=self._cache,
                environment=self._environment,
            )
            kept = self._models[name] = (weights, local)  # a replaced model stops after its idle timeout
        return kept[1]
