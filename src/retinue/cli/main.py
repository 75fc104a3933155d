"""`retinue`: operations in a terminal. Agents call it all day, so nothing is imported before it is needed."""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] in (["--version"], ["-V"]):
        return _say_version()
    return _guarded(arguments)


def _guarded(arguments: list[str]) -> int:
    """Run a command; whatever goes wrong ends in words for a person and a code for a program."""
    from retinue.cli.errors import INTERRUPTED, UNHEARD, CliError
    from retinue.cli.output import complain, prepare

    prepare(sys.stdout)
    prepare(sys.stderr)
    try:
        return _run(arguments)
    except CliError as error:
        complain(error)
        if "--json" in arguments:
            import json

            sys.stdout.write(json.dumps({"error": error.form()}, ensure_ascii=False) + "\n")
        return error.exits
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return INTERRUPTED
    except BrokenPipeError:
        _hush()
        return UNHEARD


def _run(arguments: list[str]) -> int:
    if arguments[:2] == ["mcp", "serve"]:  # no question to the house: it speaks a protocol, line by line
        from retinue.cli.mcp import command

        return command(arguments[2:])
    from retinue.cli.parser import parse

    options = parse(arguments)
    match options.command:
        case "help":
            from retinue.cli.help import of_noun, overview

            sys.stdout.write(of_noun(options.noun) if options.noun else overview())
            return 0
        case "version":
            return _say_version()
        case "run":
            return _become("daemon")
        case "restore":
            return _become("restore", options.folder)
        case "rehearse":
            from retinue.cli.dry_run import rehearse

            return rehearse(options)
        case "service":
            return _become("service")
        case "up" | "down" | "logs":
            from retinue.cli import process_control

            return process_control.COMMANDS[options.command](options)
        case "join":
            from retinue.cli.join import join

            return join(options)
        case "completion":
            from retinue.cli.completion import script

            sys.stdout.write(script(options.shell))
            return 0
        case "chat":
            from retinue.cli.chat import chat

            return chat(options)
        case _:
            from retinue.cli.operation_command import perform

            return perform(options)


def _say_version() -> int:
    from retinue import __version__

    sys.stdout.write(f"retinue {__version__}\n")
    return 0


def _become(module: str, *words: str) -> int:
    """Become a program in the daemon's row. `-P` keeps the folder we stand in off its path: no file there is ours."""
    import os

    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", f"retinue.{module}", *words])


def _hush() -> None:
    """Nobody reads on: let the interpreter's last flush go nowhere."""
    import os

    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
