"""Runs `retinue join`: exchanges an invitation for a token."""

from __future__ import annotations

import json
import os

from retinue.cli import client
from retinue.cli.output import print_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace


def join(options: Namespace) -> int:
    """Redeem an invitation, and print the token and how to use it. The token is not written to disk."""
    joined = client.redeem_invitation(options.invitation)
    if options.json:
        print_lines([json.dumps(joined, ensure_ascii=False)])
        return 0
    url = os.environ.get("RETINUE_URL")
    where = [f"  export RETINUE_URL={url}"] if url else [f"  export RETINUE_HOME={client.get_data_dir()}"]
    print_lines(
        [
            f"name: {joined['name']}",
            f"role: {joined['role']}",
            f"token: {joined['token']}",
            "",
            "This token is shown once. To use it, run in your shell:",
            *where,
            f"  export RETINUE_TOKEN={joined['token']}",
            "  retinue chat",
        ]
    )
    return 0
