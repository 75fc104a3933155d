"""The server's slash commands in a bot's menu in private chats. Telegram keeps the menu, so it is
sent only when it changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from retinue.connectors.base import Shelf
from retinue.domain.slash_command import SUMMARIES, CommandName

KEY = "menu"
DESCRIPTION_LENGTH_MAX = 256
ALIKE = frozenset({CommandName.ABORT, CommandName.APPROVE})  # same meaning as another command

Call = Callable[[str, Mapping[str, Any]], Awaitable[bool]]

_SCOPE = {"scope": {"type": "all_private_chats"}}


def commands() -> list[dict[str, str]]:
    return [
        {"command": name.value, "description": meaning[:DESCRIPTION_LENGTH_MAX]}
        for name, (_, meaning) in SUMMARIES.items()
        if name not in ALIKE
    ]


async def offer(call: Call, shelf: Shelf, bot: int, *, wanted: bool) -> None:
    """Update the menu if it differs. If Telegram does not accept it, the next connection tries
    again."""
    known = await shelf.get(KEY)
    offered = commands() if wanted else []
    now = f"{bot} {msgspec.json.encode(offered).decode()}" if wanted else ""
    if (known or "") == now:
        return
    if wanted:
        taken = await call("setMyCommands", {"commands": offered, **_SCOPE})
    else:
        taken = await call("deleteMyCommands", _SCOPE)
    if taken:
        await shelf.put(KEY, now)
