"""The peers of the built-in connectors by name, and those of plugins by `MODULE:NAME`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import cast

from retinue.testing.fault_kit.peer import Peer

PEERS: dict[str, str] = {
    "quiet": "retinue.testing.fault_kit.fake_peer:FakePeer",
    "quiet-forgetful": "retinue.testing.fault_kit.fake_peer:NonDedupingFakePeer",
    "irc": "retinue.testing.fault_kit.irc_peer:IrcPeer",
    "email": "retinue.testing.fault_kit.email_peer:EmailPeer",
    "telegram": "retinue.testing.fault_kit.telegram_peer:TelegramPeer",
    "webhook": "retinue.testing.fault_kit.webhook_peer:WebhookPeer",
}


def create_peer(peer_name: str) -> Peer:
    """Create a peer, by its name in this registry or by `MODULE:NAME`."""
    module, _, name = PEERS.get(peer_name, peer_name).partition(":")
    make = cast("Callable[[], Peer]", getattr(import_module(module), name))
    return make()


def find_platforms_without_peer(platforms: Iterable[str]) -> list[str]:
    """Return the given platforms for which no peer is registered."""
    benched = {create_peer(name).platform for name in PEERS}
    return [kind for kind in platforms if kind not in benched]
