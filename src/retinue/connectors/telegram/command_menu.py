"""Puts the server's slash commands into a bot's menu in private chats.

Telegram stores the menu, so it is sent only when it changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from retinue.connectors.base import ConnectorState
from retinue.domain.slash_command import SUMMARIES, CommandName

KEY = "menu"
DESCRIPTION_LENGTH_MAX = 256
ALIASES = frozenset({CommandName.ABORT, CommandName.APPROVE})  # same meaning as another command

CallMethod = Callable[[str, Mapping[str, Any]], Awaitable[bool]]

_SCOPE = {"scope": {"type": "all_private_chats"}}


def build_menu() -> list[dict[str, str]]:
    return [
        {"command": name.value, "description": meaning[:DESCRIPTION_LENGTH_MAX]}
        for name, (_, meaning) in SUMMARIES.items()
        if name not in ALIASES
    ]


async def sync_menu(call: CallMethod, state: ConnectorState, bot: int, *, is_enabled: bool) -> None:
    """Update the bot's menu if it has changed.

    If Telegram refuses the menu, it is sent again at the next connection.
    """
    known = await state.get(KEY)
    offered = build_menu() if is_enabled else []
    now = f"{bot} {msgspec.json.encode(offered).decode()}" if is_enabled else ""
    if (known or "") == now:
        return
    if is_enabled:
        taken = await call("setMyCommands", {"commands": offered, **_SCOPE})
    else:
        taken = await call("deleteMyCommands", _SCOPE)
    if taken:
        await state.put(KEY, now)
