"""A `docker` program that records its calls: containers are files, and `exec` runs the command on this machine.

DOCKER_HOST names the folder for them and for `calls.jsonl`, which lists all calls.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main(words: list[str]) -> int:
    folder = Path(os.environ["DOCKER_HOST"])
    with (folder / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps({"words": words, "environment": dict(os.environ)}) + "\n")
    if (folder / "down").exists():
        print("Cannot connect to the Docker daemon")
        return 1
    match words:
        case ["version", *_]:
            print("28.0")
        case ["image", "inspect", *_, image]:
            return 0 if image in (folder / "images").read_text().split() else 1
        case ["run", *_]:
            print((folder / "canary").read_text() if (folder / "canary").exists() else "stands")
        case ["container", "inspect", *_, name]:
            return _inspect(folder / name)
        case ["create", *options]:
            name = options[options.index("--name") + 1]
            labels = dict(options[at + 1].split("=", 1) for at, word in enumerate(options) if word == "--label")
            (folder / name).write_text(json.dumps({"labels": labels, "running": False}))
        case ["start", name]:
            held = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps({**held, "running": True}))
        case ["rm", "--force", name]:
            (folder / name).unlink()
        case ["ps", *_]:
            for held in sorted(folder.glob("retinue-*")):
                print(f"{held.name}\t{json.loads(held.read_text())['labels']['retinue.created-ms']}")
        case ["exec", *rest]:
            return _exec(rest)
        case _:
            print(f"unknown: {words}")
            return 125
    return 0


def _inspect(path: Path) -> int:
    if not path.exists():
        print("Error: no such container")
        return 1
    held = json.loads(path.read_text())
    print(json.dumps({"Config": {"Labels": held["labels"]}, "State": {"Running": held["running"]}}))
    return 0


def _exec(rest: list[str]) -> int:
    environment = {"PATH": "/usr/bin:/bin"}
    while rest[0].startswith("--"):
        option = rest.pop(0)
        if option in ("--workdir", "--env-file", "--user"):
            value = rest.pop(0)
            if option == "--workdir":
                os.chdir(value)
            if option == "--env-file":
                lines = Path(value).read_text().splitlines()
                environment |= dict(line.split("=", 1) for line in lines)
    _, program, *arguments = rest
    os.execvpe(program, [program, *arguments], environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
