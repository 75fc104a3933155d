"""Run one part of `make check`. When it has ended, print all its output, and then how long it took.

This way, two parts can run at once without mixing their output.
"""

from __future__ import annotations

import subprocess
import sys
import time


def main(arguments: list[str]) -> int:
    """Run `NAME COMMAND...` and return what the command returns."""
    name, *command = arguments
    began = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    verdict = "ok" if done.returncode == 0 else "failed"
    print(f"{done.stdout.rstrip()}\n{name}: {verdict}, {time.monotonic() - began:.0f} s\n".lstrip(), flush=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
