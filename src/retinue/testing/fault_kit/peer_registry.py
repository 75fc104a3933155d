"""The peers of the built-in connectors by name, and those of plugins by `MODULE:NAME`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import cast

from retinue.testing.fault_kit.peer import Bench

BENCHES: dict[str, str] = {
    "quiet": "retinue.testing.fault_kit.fake_peer:QuietBench",
    "quiet-forgetful": "retinue.testing.fault_kit.fake_peer:ForgetfulBench",
    "irc": "retinue.testing.fault_kit.irc_peer:IrcBench",
    "email": "retinue.testing.fault_kit.email_peer:MailBench",
    "telegram": "retinue.testing.fault_kit.telegram_peer:TelegramBench",
    "webhook": "retinue.testing.fault_kit.webhook_peer:WebhookBench",
}


def made(named: str) -> Bench:
    """Create a new peer, by its name here or by `MODULE:NAME`."""
    module, _, name = BENCHES.get(named, named).partition(":")
    make = cast("Callable[[], Bench]", getattr(import_module(module), name))
    return make()


def without_a_bench(kinds: Iterable[str]) -> list[str]:
    """Returns those of these platforms that have no peer."""
    benched = {made(name).kind for name in BENCHES}
    return [kind for kind in kinds if kind not in benched]
