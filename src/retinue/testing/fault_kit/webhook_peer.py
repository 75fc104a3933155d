"""The webhook peer of the fault test suite: a receiver that accepts each message once, by its id.

It is only for deliveries. Inbound messages are requests to the HTTP API of the server, and senders
repeat them until they get a response (`tests/connectors/test_webhook_inbound.py`). The connector
has no connection for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.connectors.base import Connector, ConnectorContext
from retinue.connectors.webhook import PLATFORM, WebhookSettings
from retinue.connectors.webhook.settings import SignatureScheme
from retinue.connectors.webhook.webhook_signature import SignatureInvalid, verify_request
from retinue.testing.fault_kit.kit_server import FastClock
from retinue.testing.fault_kit.peer import BasePeer, HostPort, PeerFault
from retinue.testing.free_ports import HOST, free_port

if TYPE_CHECKING:
    from aiohttp import web

SECRET = "a secret that both of the two sides share"
TIMEOUT_S = 60.0
RETRY_AFTER_S = 2

_NO_INBOUND = (
    "inbound messages are HTTP requests to the server, answered after their commit; this connector receives none"
)
_FAULT_STATUSES = {PeerFault.REFUSES: 503, PeerFault.THROTTLES: 429, PeerFault.FORBIDS: 410}


class WebhookPeer(BasePeer):
    """Connects the fault test suite to the webhook connector, with a receiver of signed webhooks."""

    platform = PLATFORM.name
    factory = "webhook"
    channel = "alerts"
    other_channel = "news"
    has_inbound = False
    secrets: Mapping[str, str] = {"secret": SECRET}
    exemptions: Mapping[str, str] = {
        **dict.fromkeys(("store-fails", "store-fails-late", "crash-before-commit"), _NO_INBOUND),
        **dict.fromkeys(("crash-after-commit", "killed-before-commit", "killed-after-commit"), _NO_INBOUND),
        **dict.fromkeys(("message-while-offline", "message-repeated", "messages-reordered"), _NO_INBOUND),
        "revoked": "it has no credential: a recipient refuses single messages, as in channel-gone",
    }

    def __init__(self) -> None:
        self._runner: web.AppRunner | None = None
        self._port = free_port()
        self._received: dict[str, dict[str, Any]] = {}
        self._next_fault: PeerFault | None = None
        self._clock = FastClock()

    async def start(self, folder: Path) -> Mapping[str, HostPort]:
        from aiohttp import web

        app = web.Application()
        app.router.add_post("/", self._handle_post)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, self._port, reuse_address=True).start()
        return {"out": (HOST, self._port)}

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def restart(self) -> None:
        await self.stop()
        await self.start(Path())

    def create_connector(self, context: ConnectorContext, addresses: Mapping[str, HostPort]) -> Connector:
        host, port = addresses["out"]
        settings = WebhookSettings(
            secret_env="SECRET",
            url=f"http://{host}:{port}/",
            private_hosts=(f"{host}:{port}",),
            timeout_s=TIMEOUT_S,
        )
        return PLATFORM.make_connector(settings, context)

    async def send_as_person(self, channel: str, text: str) -> None:
        raise NotImplementedError("this platform has no inbound messages")

    async def list_texts(self, channel: str) -> list[str]:
        return [each["text"] for each in self._received.values() if each["channel"] == channel]

    async def start_fault(self, fault: PeerFault) -> None:
        if fault not in _FAULT_STATUSES:
            await super().start_fault(fault)
        self._next_fault = fault

    async def _handle_post(self, request: web.Request) -> web.Response:
        from aiohttp import web

        try:
            body = await request.read()
        except OSError:  # the connection broke in the middle
            return web.Response(status=400)
        headers = {key.lower(): value for key, value in request.headers.items()}
        try:
            key = verify_request(SignatureScheme.STANDARD, SECRET, headers, body, now_s=self._clock.now().timestamp())
        except SignatureInvalid:
            return web.Response(status=401)
        if (trouble := self._next_fault) is not None:
            self._next_fault = None
            patience = {"Retry-After": str(RETRY_AFTER_S)} if trouble is PeerFault.THROTTLES else {}
            return web.Response(status=_FAULT_STATUSES[trouble], headers=patience)
        self._received.setdefault(key, json.loads(body))
        return web.Response(status=204)
