"""Text of `retinue help`: an overview, or the verbs of one noun."""

from __future__ import annotations

from retinue.cli.aliases import NOUNS, SHORTS
from retinue.cli.parser import nouns, operations

EXITS = """\
exit codes:
  0  done
  1  refused, or not answered; the reason is on stderr
  2  not understood
  3  no house is open
  4  a short id that names more than one thing; they are listed on stderr"""


def overview() -> str:
    """Return the text of `retinue --help`."""
    width = max(map(len, [*SHORTS, *nouns()])) + 2
    shorts = "\n".join(f"  {name:<{width}}{short[1]}" for name, short in SHORTS.items())
    listed = "\n".join(f"  {noun:<{width}}{NOUNS.get(noun, '')}".rstrip() for noun in nouns())
    return (
        "usage: retinue COMMAND [...]\n       retinue NOUN VERB [...]\n\n"
        "A house with a staff of agents that loses nothing.\n\n"
        f"commands:\n{shorts}\n\nnouns, each with its verbs:\n{listed}\n\n"
        "`retinue COMMAND --help` and `retinue NOUN` tell more.\n\n"
        "examples:\n  retinue up\n  retinue chat\n  retinue agent list\n\n"
        f"{EXITS}\n\n"
        "RETINUE_HOME says which house (~/.retinue); RETINUE_TOKEN who you are (its owner);\n"
        "RETINUE_URL where it is, when it is not on this machine.\n"
    )


def of_noun(noun: str) -> str:
    """Return the text of `retinue NOUN`, which lists its verbs."""
    rows = [(_words(operation[5], operation[1]), operation[2]) for operation in operations() if operation[0] == noun]
    width = max(len(words) for words, _ in rows) + 2
    listed = "\n".join(f"  {words:<{width}}{summary}" for words, summary in rows)
    about = f"\n{NOUNS[noun]}\n" if noun in NOUNS else ""
    return f"usage: retinue {noun} VERB [...]\n{about}\nverbs:\n{listed}\n\n`retinue {noun} VERB --help` tells more.\n"


def _words(parameters: tuple[tuple[object, ...], ...], verb: str) -> str:
    places = [str(each[1])[2:].upper().replace("-", "_") for each in parameters if "place" in str(each[3])]
    return " ".join([verb, *places])
