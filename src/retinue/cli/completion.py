"""`retinue completion`: generates completion scripts for bash, zsh and fish from the operation table."""

from __future__ import annotations

from retinue.cli.aliases import ALIASES, NOUN_SUMMARIES, split_command
from retinue.cli.operation_table import OPERATIONS
from retinue.cli.parser import build_alias_parser, build_operation_parser, list_nouns, list_verbs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from retinue.cli.parser import CommandParser

_BASH_TEMPLATE = """\
# retinue: completion for bash. Load it with: eval "$(retinue completion bash)"
_retinue() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} known=""
    local one=${{COMP_WORDS[1]}} two=${{COMP_WORDS[2]}}
    if [[ $COMP_CWORD -eq 1 ]]; then
        known="{first}"
    else
        [[ $COMP_CWORD -eq 2 ]] && two=""
        case "$one $two $before" in
{values}
        *)
            [[ $COMP_CWORD -eq 2 ]] && case "$one" in
{verbs}
            esac
            case "$one $two" in
{long}
            *) case "$one" in
{short}
            esac ;;
            esac ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$known" -- "$word"))
}}
complete -o default -F _retinue retinue
"""
_ZSH_HEADER = """\
# retinue: completion for zsh. Load it with: eval "$(retinue completion zsh)"
autoload -U +X bashcompinit && bashcompinit
"""
_FISH_HEADER = """\
# retinue: completion for fish. Load it with: retinue completion fish | source
complete -c retinue -f
"""


def build_script(shell: str) -> str:
    match shell:
        case "fish":
            return _FISH_HEADER + "".join(f"{line}\n" for line in _build_fish_lines())
        case "zsh":
            return _ZSH_HEADER + _build_bash().partition("\n")[2]
        case _:
            return _build_bash()


def _list_options(parser: CommandParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings]  # pyright: ignore[reportPrivateUsage]


def _list_choices(parser: CommandParser) -> list[tuple[str, str]]:
    """Return each option that has a fixed set of values, with these values separated by spaces."""
    return [
        (option, " ".join(map(str, action.choices)))
        for action in parser._actions  # pyright: ignore[reportPrivateUsage]
        for option in action.option_strings
        if action.choices
    ]


def _build_parsers() -> list[tuple[str, str, CommandParser]]:
    """Return the first word, second word and parser of every command. A short command has no second word."""
    found = [(name, "", build_alias_parser(name)) for name in ALIASES]
    return found + [(*split_command(each[0]), build_operation_parser(each)) for each in OPERATIONS]


def _build_bash() -> str:
    parsers = _build_parsers()
    values = [
        f'        "{one} {two} {option}")\n            known="{words}" ;;'
        if two
        else f'        "{one} "*" {option}")\n            known="{words}" ;;'
        for one, two, parser in reversed(parsers)  # commands of two words first: `case` takes the first match
        for option, words in _list_choices(parser)
    ]
    verbs = [f'            {noun}) known="{" ".join(list_verbs(noun))}" ;;' for noun in list_nouns()]
    verbs.append('            completion) known="bash zsh fish" ;;')
    long = [
        f'            "{one} {two}") known="$known {" ".join(_list_options(parser))}" ;;'
        for one, two, parser in parsers
        if two
    ]
    short = [
        f'            {one}) known="$known {" ".join(_list_options(parser))}" ;;'
        for one, two, parser in parsers
        if not two
    ]
    return _BASH_TEMPLATE.format(
        first=" ".join(dict.fromkeys([*ALIASES, *list_nouns(), "help"])),
        values="\n".join(values),
        verbs="\n".join(verbs),
        long="\n".join(long),
        short="\n".join(short),
    )


def _build_fish_lines() -> list[str]:
    at_first = "__fish_use_subcommand"
    about = {**NOUN_SUMMARIES, **{name: short[1] for name, short in ALIASES.items()}}
    lines = [
        f"complete -c retinue -n {at_first} -a {word} -d {_quote_fish(about.get(word, ''))}"
        for word in dict.fromkeys([*ALIASES, *list_nouns(), "help"])
    ]
    for name, summary, *_ in OPERATIONS:
        noun, verb = split_command(name)
        seen = " ".join(list_verbs(noun))
        condition = f"__fish_seen_subcommand_from {noun}; and not __fish_seen_subcommand_from {seen}"
        lines.append(f"complete -c retinue -n {_quote_fish(condition)} -a {verb} -d {_quote_fish(summary)}")
    lines.append("complete -c retinue -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'")
    for one, two, parser in _build_parsers():
        condition = f"__fish_seen_subcommand_from {one}" + (f"; and __fish_seen_subcommand_from {two}" if two else "")
        choices = dict(_list_choices(parser))
        for option in _list_options(parser):
            if option.startswith("--"):
                takes = f" -x -a {_quote_fish(choices[option])}" if option in choices else ""
                lines.append(f"complete -c retinue -n {_quote_fish(condition)} -l {option[2:]}{takes}")
    return lines


def _quote_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
