"""Formats the help texts of `retinue --help` (an overview) and `retinue NOUN` (the verbs of a noun)."""

from __future__ import annotations

from retinue.cli.aliases import ALIASES, NOUN_SUMMARIES, split_command
from retinue.cli.parser import list_nouns, list_operations

EXIT_CODES_TEXT = """\
exit codes:
  0  done
  1  failed, or a message was not answered; the reason is on stderr
  2  invalid command line
  3  no server is running
  4  ambiguous short id; the matching ids are listed on stderr"""


def format_overview() -> str:
    """Return the text of `retinue --help`."""
    width = max(map(len, [*ALIASES, *list_nouns()])) + 2
    shorts = "\n".join(f"  {name:<{width}}{short[1]}" for name, short in ALIASES.items())
    listed = "\n".join(f"  {noun:<{width}}{NOUN_SUMMARIES.get(noun, '')}".rstrip() for noun in list_nouns())
    return (
        "usage: retinue COMMAND [...]\n       retinue NOUN VERB [...]\n\n"
        "A server for a team of AI agents.\n\n"
        f"commands:\n{shorts}\n\nnouns, each with verbs:\n{listed}\n\n"
        "More help: `retinue COMMAND --help`, `retinue NOUN`.\n\n"
        "examples:\n  retinue up\n  retinue chat\n  retinue agent list\n\n"
        f"{EXIT_CODES_TEXT}\n\n"
        "environment:\n"
        "  RETINUE_HOME   data directory (default: ~/.retinue)\n"
        "  RETINUE_TOKEN  your token (default: the owner's token)\n"
        "  RETINUE_URL    URL of a server on another machine\n"
    )


def format_noun(noun: str) -> str:
    """Return the text of `retinue NOUN`, which lists its verbs."""
    rows = [
        (_format_verb(parameters, verb), summary)
        for name, summary, _, _, parameters in list_operations()
        for found, verb in [split_command(name)]
        if found == noun
    ]
    width = max(len(words) for words, _ in rows) + 2
    listed = "\n".join(f"  {words:<{width}}{summary}" for words, summary in rows)
    about = f"\n{NOUN_SUMMARIES[noun]}\n" if noun in NOUN_SUMMARIES else ""
    return f"usage: retinue {noun} VERB [...]\n{about}\nverbs:\n{listed}\n\nMore help: `retinue {noun} VERB --help`.\n"


def _format_verb(parameters: tuple[tuple[object, ...], ...], verb: str) -> str:
    words = [verb]
    for _, option, _, marks, *_ in parameters:
        if "positional" in str(marks):
            shown = str(option)[2:].upper().replace("-", "_")
            words.append(shown if "required" in str(marks) else f"[{shown}]")
    return " ".join(words)
