"""The key-value state of each connector in the store.

Keys are stored per connector name, so two connectors of one platform do not share them.
"""

from __future__ import annotations

from functools import partial

from retinue.domain.ports import Clock
from retinue.domain.times import to_ms
from retinue.store.channels import connector_state
from retinue.store.core.connection import Store


class StoredConnectorState:
    """The state of one connector in the store.

    When `put` returns, the value is committed, so a crash cannot leave a partial value.
    """

    def __init__(self, store: Store, clock: Clock, connector_name: str) -> None:
        self._store = store
        self._clock = clock
        self._connector_name = connector_name

    async def get(self, key: str) -> str | None:
        return await self._store.read(partial(connector_state.get_value, connector=self._connector_name, key=key))

    async def put(self, key: str, value: str) -> None:
        at_ms = to_ms(self._clock.now())
        body = partial(connector_state.set_value, connector=self._connector_name, key=key, value=value, at_ms=at_ms)
        await self._store.write(body, point="connector")
