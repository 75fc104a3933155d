"""Run the command `retinue` as `python -m retinue`."""

from __future__ import annotations

import sys

from retinue.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
