"""Entry point of `retinue`. Agents call it often, so nothing is imported before it is needed."""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] in (["--version"], ["-V"]):
        return _print_version()
    return _run_and_report(arguments)


def _run_and_report(arguments: list[str]) -> int:
    """Run a command and return its exit code. An expected error is printed to stderr."""
    from retinue.cli.errors import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, CliError
    from retinue.cli.output import configure_stream, print_error

    configure_stream(sys.stdout)
    configure_stream(sys.stderr)
    try:
        return _run_command(arguments)
    except CliError as error:
        print_error(error)
        if "--json" in arguments:
            import json

            sys.stdout.write(json.dumps({"error": error.to_dict()}, ensure_ascii=False) + "\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return EXIT_BROKEN_PIPE


def _run_command(arguments: list[str]) -> int:
    if arguments[:2] == ["mcp", "serve"]:  # not an operation: it speaks MCP on stdin and stdout
        from retinue.cli.mcp import run_command

        return run_command(arguments[2:])
    from retinue.cli.parser import parse_arguments

    options = parse_arguments(arguments)
    match options.command:
        case "help":
            from retinue.cli.help import format_noun, format_overview

            sys.stdout.write(format_noun(options.noun) if options.noun else format_overview())
            return 0
        case "version":
            return _print_version()
        case "run":
            return _exec_module("app.server")
        case "restore":
            return _exec_module("app.restore", options.folder)
        case "dry-run":
            from retinue.cli.dry_run import run_dry_run

            return run_dry_run(options)
        case "service":
            return _exec_module("app.systemd_unit")
        case "up" | "down" | "logs":
            from retinue.cli import process_control

            return process_control.COMMANDS[options.command](options)
        case "join":
            from retinue.cli.join import join

            return join(options)
        case "completion":
            from retinue.cli.completion import build_script

            sys.stdout.write(build_script(options.shell))
            return 0
        case "chat":
            from retinue.cli.chat import chat

            return chat(options)
        case _:
            from retinue.cli.operation_command import run_operation

            return run_operation(options)


def _print_version() -> int:
    from retinue import __version__

    sys.stdout.write(f"retinue {__version__}\n")
    return 0


def _exec_module(module: str, *arguments: str) -> int:
    """Replace this process with a Python module of the server.

    `-P` keeps the working directory off `sys.path`, because it may contain Python files of another project.
    """
    import os

    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", f"retinue.{module}", *arguments])


def _discard_stdout() -> None:
    """Redirect stdout to /dev/null, so that flushing it at exit does not fail after its reader closed the pipe."""
    import os

    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
