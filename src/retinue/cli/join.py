"""`retinue join`: exchanges an invitation for a token."""

from __future__ import annotations

import json
import os

from retinue.cli import client
from retinue.cli.output import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace


def join(options: Namespace) -> int:
    """Redeem an invitation and print the token with the commands that use it. Nothing is written to disk."""
    came = client.join(options.invitation)
    if options.json:
        say([json.dumps(came, ensure_ascii=False)])
        return 0
    url = os.environ.get("RETINUE_URL")
    where = [f"  export RETINUE_URL={url}"] if url else [f"  export RETINUE_HOME={client.home()}"]
    say(
        [
            f"name: {came['name']}",
            f"role: {came['role']}",
            f"token: {came['token']}",
            "",
            "This token is shown once. In a shell of your own, type:",
            *where,
            f"  export RETINUE_TOKEN={came['token']}",
            "  retinue chat",
        ]
    )
    return 0
