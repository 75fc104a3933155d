"""Returns the client object with which a model is called.

Built-in models are found by name. Other clients are created from the URL and options in the catalog.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from retinue.config.models import ModelEntry, WireFormat
from retinue.domain.model import ModelFacts, ModelRef
from retinue.models.base import Model
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.errors import BuiltInModelNotFound
from retinue.models.model_selection import ModelSelector
from retinue.models.provider_http import HttpModel, ModelTarget, ProviderConnections, ProviderFormat

CLIENTS_CACHED_MAX = 64

ModelFactory = Callable[[ModelRef, ModelEntry], Model]


class _CachedClient(Struct, frozen=True):
    catalog: ModelSelector
    format: WireFormat
    target: ModelTarget
    model: HttpModel


class ModelClients:
    """Holds the clients of all models in use.

    `catalog` is called for each reply, so a changed setting applies from the next reply on.
    """

    def __init__(
        self,
        built_in: Sequence[Model],
        catalog: Callable[[], ModelSelector],
        connections: ProviderConnections,
        cache: EncodedContextCache,
        *,
        factories: Mapping[str, ModelFactory] | None = None,
    ) -> None:
        """`factories` maps a provider to a function that creates its client, for example for local models."""
        self._factories = factories or {}
        self._built_in = {model.name: model for model in built_in}
        self._catalog = catalog
        self._connections = connections
        self._cache = cache
        self._formats: dict[WireFormat, ProviderFormat] = {}
        self._clients: OrderedDict[ModelRef, _CachedClient] = OrderedDict()

    def set_built_in(self, built_in: Sequence[Model]) -> None:
        """Replace the built-in models."""
        self._built_in = {model.name: model for model in built_in}

    @property
    def built_in_facts(self) -> tuple[ModelFacts, ...]:
        """The facts of the built-in models, from which a model catalog is built."""
        return tuple(model.facts for model in self._built_in.values())

    def find(self, ref: ModelRef) -> Model:
        """Return the client of a model. A new client is created only if the model's URL or options have changed."""
        if not ref.provider:
            return self._find_built_in(ref.model)
        catalog = self._catalog()
        if (make := self._factories.get(ref.provider)) is not None:
            return make(ref, catalog.get_entry(ref))
        kept = self._clients.pop(ref, None)
        if kept is None or kept.catalog is not catalog:
            format_, target = catalog.build_target(ref)
            if kept is None or (kept.format, kept.target) != (format_, target):
                kept = _CachedClient(
                    catalog, format_, target, HttpModel(self._connections, self._get_format(format_), target)
                )
            else:
                kept = _CachedClient(catalog, format_, target, kept.model)
        self._clients[ref] = kept
        if len(self._clients) > CLIENTS_CACHED_MAX:
            self._clients.popitem(last=False)
        return kept.model

    def _get_format(self, format_: WireFormat) -> ProviderFormat:
        if format_ not in self._formats:
            from retinue.models.formats.wire_formats import make_provider_format

            self._formats[format_] = make_provider_format(format_, self._cache)
        return self._formats[format_]

    def _find_built_in(self, name: str) -> Model:
        found = self._built_in.get(name)
        if found is None:
            raise BuiltInModelNotFound(name, built_in=sorted(self._built_in))
        return found
