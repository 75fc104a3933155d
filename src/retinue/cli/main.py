"""Entry point of `retinue`. Agents call it often, so nothing is imported before it is needed."""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] in (["--version"], ["-V"]):
        return _say_version()
    return _guarded(arguments)


def _guarded(arguments: list[str]) -> int:
    """Run a command. Every expected error ends as text on stderr and an exit code."""
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
    if arguments[:2] == ["mcp", "serve"]:  # not an operation: it speaks MCP on stdin and stdout
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
            return _become("app.server")
        case "restore":
            return _become("app.restore", options.folder)
        case "rehearse":
            from retinue.cli.dry_run import rehearse

            return rehearse(options)
        case "service":
            return _become("app.systemd_unit")
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
    """Replace this process with a module of the server.

    `-P` keeps the working directory off `sys.path`, because files there are not ours.
    """
    import os

    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", f"retinue.{module}", *words])


def _hush() -> None:
    """Redirect stdout to /dev/null: its reader is gone, and the interpreter flushes it at exit."""
    import os

    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
