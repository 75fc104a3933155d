"""The webhook peer, for deliveries: a receiver that accepts each message once, by its id.

Inbound messages are requests to the server's own HTTP API, which senders repeat until they are
answered (`tests/connectors/test_webhook_inbound.py`). The connector has no connection for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.connectors.base import Connector, Surroundings
from retinue.connectors.webhook import KIND, WebhookSettings
from retinue.connectors.webhook.settings import Proof
from retinue.connectors.webhook.webhook_signature import Unproved, proved
from retinue.testing.fault_kit.kit_server import HastyClock
from retinue.testing.fault_kit.peer import At, PlainBench, Trouble
from retinue.testing.free_ports import HOST, free_port

if TYPE_CHECKING:
    from aiohttp import web

SECRET = "a secret that both of the two sides share"
TIMEOUT_S = 60.0
RETRY_AFTER_S = 2

_COMES_BY_THE_HOUSE = (
    "what comes in is a request at the house's own door, answered after its commit; this connector hears nothing"
)
_ANSWERS = {Trouble.REFUSES: 503, Trouble.THROTTLES: 429, Trouble.FORBIDS: 410}


class WebhookBench(PlainBench):
    """A receiver of signed webhooks."""

    kind = KIND.name
    made_by = "webhook"
    room = "alerts"
    other_room = "news"
    hears = False
    secrets: Mapping[str, str] = {"secret": SECRET}
    exempt: Mapping[str, str] = {
        **dict.fromkeys(("store-fails", "store-fails-late", "crash-before-commit"), _COMES_BY_THE_HOUSE),
        **dict.fromkeys(("crash-after-commit", "killed-before-commit", "killed-after-commit"), _COMES_BY_THE_HOUSE),
        **dict.fromkeys(("said-while-away", "told-twice", "told-out-of-order"), _COMES_BY_THE_HOUSE),
        "revoked": "it logs in nowhere: whoever will not have a message says so to that message, as in room-gone",
    }

    def __init__(self) -> None:
        self._runner: web.AppRunner | None = None
        self._port = free_port()
        self._taken: dict[str, dict[str, Any]] = {}
        self._next: Trouble | None = None
        self._clock = HastyClock()

    async def open(self, folder: Path) -> Mapping[str, At]:
        from aiohttp import web

        app = web.Application()
        app.router.add_post("/", self._posted)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, self._port, reuse_address=True).start()
        return {"out": (HOST, self._port)}

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def restart(self) -> None:
        await self.close()
        await self.open(Path())

    def connector(self, surroundings: Surroundings, at: Mapping[str, At]) -> Connector:
        host, port = at["out"]
        settings = WebhookSettings(
            secret_env="SECRET",
            url=f"http://{host}:{port}/",
            private_hosts=(f"{host}:{port}",),
            timeout_s=TIMEOUT_S,
        )
        return KIND.make(settings, surroundings)

    async def say(self, room: str, text: str) -> None:
        raise NotImplementedError("nobody speaks here")

    async def standing(self, room: str) -> list[str]:
        return [each["text"] for each in self._taken.values() if each["room"] == room]

    async def begin(self, trouble: Trouble) -> None:
        if trouble not in _ANSWERS:
            await super().begin(trouble)
        self._next = trouble

    async def _posted(self, request: web.Request) -> web.Response:
        from aiohttp import web

        try:
            body = await request.read()
        except OSError:  # the connection broke in the middle
            return web.Response(status=400)
        headers = {key.lower(): value for key, value in request.headers.items()}
        try:
            key = proved(Proof.STANDARD, SECRET, headers, body, now_s=self._clock.now().timestamp())
        except Unproved:
            return web.Response(status=401)
        if (trouble := self._next) is not None:
            self._next = None
            patience = {"Retry-After": str(RETRY_AFTER_S)} if trouble is Trouble.THROTTLES else {}
            return web.Response(status=_ANSWERS[trouble], headers=patience)
        self._taken.setdefault(key, json.loads(body))
        return web.Response(status=204)
