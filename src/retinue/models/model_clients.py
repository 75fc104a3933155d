"""Model clients, ready to call: built-in models by name, all others created for the target in the catalog."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from retinue.config.models import ModelSettings, WireFormat
from retinue.domain.errors import NotFound
from retinue.domain.model import ModelFacts, ModelRef
from retinue.models.base import Model, WireCache
from retinue.models.model_selection import Catalog
from retinue.models.provider_http import HttpModel, Link, Target, Wire

MODELS_KEPT_MAX = 64

Maker = Callable[[ModelRef, ModelSettings], Model]


class _Made(Struct, frozen=True):
    catalog: Catalog
    format: WireFormat
    target: Target
    model: HttpModel


class Shelf:
    """The model clients. `catalog` is called each time, so a changed setting applies from the next reply on."""

    def __init__(
        self,
        house: Sequence[Model],
        catalog: Callable[[], Catalog],
        link: Link,
        cache: WireCache,
        *,
        makers: Mapping[str, Maker] | None = None,
    ) -> None:
        """`factories` create the models of providers that are not reached by one of our formats."""
        self._makers = makers or {}
        self._house = {model.name: model for model in house}
        self._catalog = catalog
        self._link = link
        self._cache = cache
        self._wires: dict[WireFormat, Wire] = {}
        self._made: OrderedDict[ModelRef, _Made] = OrderedDict()

    def bring(self, house: Sequence[Model]) -> None:
        """Replace the built-in models."""
        self._house = {model.name: model for model in house}

    @property
    def house(self) -> tuple[ModelFacts, ...]:
        """The facts of the built-in models, for a catalog."""
        return tuple(model.facts for model in self._house.values())

    def find(self, ref: ModelRef) -> Model:
        """Return the client of a model. A new one is created only if its target has changed."""
        if not ref.provider:
            return self._of_the_house(ref.model)
        catalog = self._catalog()
        if (make := self._makers.get(ref.provider)) is not None:
            return make(ref, catalog.entry(ref))
        kept = self._made.pop(ref, None)
        if kept is None or kept.catalog is not catalog:
            format_, target = catalog.target(ref)
            if kept is None or (kept.format, kept.target) != (format_, target):
                kept = _Made(catalog, format_, target, HttpModel(self._link, self._wire(format_), target))
            else:
                kept = _Made(catalog, format_, target, kept.model)
        self._made[ref] = kept
        if len(self._made) > MODELS_KEPT_MAX:
            self._made.popitem(last=False)
        return kept.model

    def _wire(self, format_: WireFormat) -> Wire:
        if format_ not in self._wires:
            from retinue.models.formats.wire_formats import wire_of

            self._wires[format_] = wire_of(format_, self._cache)
        return self._wires[format_]

    def _of_the_house(self, name: str) -> Model:
        found = self._house.get(name)
        if found is None:
            raise NotFound(
                f"there is no model '{name[:64]}' here",
                because=f"this house has {', '.join(sorted(self._house))} of its own",
                try_this="look at `retinue models`, and choose another one",
                code="model.not-found",
            )
        return found
