"""The allowlist of commands that run without approval.

A rule is a line of words such as `git status` or `ls *`:

- The first word is a program: a name, which is looked up on the server's PATH, or an absolute path,
  in which `*` stands for one component. The file behind all links is what counts.
- Each further word stands for one argument. `*` and `?` in it match any characters, but never an
  argument that contains `..`. They match a leading dash only if the word itself begins with one.
- A last word `*` stands for any number of arguments.

Programs that execute their arguments or input (shells, interpreters, `env`, `xargs`, `ssh`, ...)
pass only by a rule without any `*` or `?`. Options that make a harmless program run or write
something pass only if the rule spells them out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath, PurePosixPath

from msgspec import Struct

from retinue.config import validators
from retinue.domain.decision import Decision, Verdict
from retinue.domain.errors import Invalid
from retinue.text.shell_parser import Line

REST = "*"
KEY = "tools.exec.allow"

# They run, load or write what their arguments, their input or the configuration in the working directory says.
_TOLD = """
    sh bash dash zsh ksh mksh fish csh tcsh ash rbash busybox toybox
    python pypy ipython node nodejs deno bun perl ruby irb lua luajit php tclsh wish expect guile racket sbcl clisp
    julia R Rscript octave java jshell groovy scala kotlin elixir iex erl escript ghci runghc ocaml swift dotnet pwsh
    awk gawk mawk nawk sed ed ex vi vim view nvim nano emacs emacsclient less more most man info gdb lldb m4 bc dc
    env xargs parallel nohup setsid nice ionice chrt taskset timeout time stdbuf unbuffer script watch entr strace
    ltrace perf valgrind flock chroot unshare nsenter bwrap firejail setpriv prlimit runuser capsh systemd-run
    systemctl start-stop-daemon run-parts at batch crontab sudo su doas pkexec ssh scp sftp rsync telnet nc ncat netcat
    socat screen tmux docker podman kubectl helm ansible ansible-playbook make gmake cmake ninja meson just rake gradle
    mvn ant npm npx yarn pnpm pip pipx uv uvx poetry cargo go gem bundle composer gcc cc clang g++ ld sqlite3 psql mysql
    mongosh eval exec source . command builtin trap openssl curl wget tee dd install ln mount git hg svn tar zip unzip
    """
RUNS_WHAT_IT_IS_TOLD = frozenset(_TOLD.split())
_MANY_IN_ONE = frozenset({"busybox", "toybox", "coreutils"})
_VERSION = re.compile(r"[-.]?[0-9][0-9.]*$")

# Options of otherwise harmless programs that run a program, or write or remove a file.
OPTIONS_NEVER_MEANT: Mapping[str, tuple[str, ...]] = {
    "find": ("-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint", "-fprint0", "-fprintf", "-fls"),
    "fd": ("-x", "-X", "--exec", "--exec-batch"),
    "sort": ("-o", "-T", "--output", "--compress-program", "--temporary-directory"),
    "rg": ("--pre", "--hostname-bin"),
    "tree": ("-o", "-R"),
    "date": ("-s", "--set"),
    "file": ("-C", "-m", "--compile", "--magic-file"),
}


class Rule(Struct, frozen=True):
    program: str
    arguments: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        return not any(_is_pattern(word) for word in (self.program, *self.arguments))


class Program(Struct, frozen=True):
    """A program as found on this machine: its path, and the file behind all links."""

    path: str
    real: str


def rule(text: str) -> Rule:
    """Parse a rule of the allowlist."""
    if reason := validators.command_rule(text):
        raise Invalid(
            f"{text[:200]!r} is not a rule for commands",
            because=f"it {reason}",
            try_this="for example: git status, ls *, /opt/tools/report *",
            code="command.rule-invalid",
        )
    program, *arguments = text.split()
    return Rule(program, tuple(arguments))


def programs_named(line: Line, rules: Iterable[Rule]) -> set[str]:
    """Return the names that must be looked up on this machine before `decide_by_allowlist` can decide."""
    named = {each.program for each in rules if not _is_pattern(each.program)}
    return named | {part.argv[0] for part in line.parts}


def allows(
    rules: Sequence[Rule], line: Line, programs: Mapping[str, Program], *, writable: Sequence[PurePath] = ()
) -> Decision:
    """Decide whether a rule allows every command of the line.

    A program that the agent could have written is never allowed.
    """
    for part in line.parts:
        name = part.argv[0]
        program = programs.get(name)
        if "/" in name and not name.startswith("/"):
            return _missed(f"'{name[:100]}' depends on the folder it is run in")
        if program is None:
            return _missed(f"there is no program '{name[:100]}' on the PATH of the house")
        if any(PurePosixPath(path).is_relative_to(each) for each in writable for path in (program.path, program.real)):
            return _missed(f"the agent can write '{program.path}' itself")
        if not any(_fits(each, part.argv[1:], program, programs) for each in rules):
            return _missed(f"no rule of `{KEY}` fits '{' '.join(part.argv)[:200]}'")
    return Decision(Verdict.ALLOW, f"each command fits a rule of `{KEY}`", key=KEY)


def _missed(because: str) -> Decision:
    return Decision(Verdict.ASK, because, key=KEY)


def _fits(rule_: Rule, arguments: Sequence[str], program: Program, programs: Mapping[str, Program]) -> bool:
    if not _is_program(rule_, program, programs):
        return False
    names = {_name(program.path)} | ({_name(program.real)} - _MANY_IN_ONE)
    if names & RUNS_WHAT_IT_IS_TOLD and not rule_.is_exact:
        return False
    open_ended = rule_.arguments[-1:] == (REST,)
    fixed = rule_.arguments[:-1] if open_ended else rule_.arguments
    if len(arguments) < len(fixed) or (len(arguments) > len(fixed) and not open_ended):
        return False
    if not all(_fits_word(pattern, word) for pattern, word in zip(fixed, arguments, strict=False)):
        return False
    loose = [word for index, word in enumerate(arguments) if index >= len(fixed) or _is_pattern(fixed[index])]
    return not any(_never_meant(name, word) for name in names for word in loose)


def _is_program(rule_: Rule, program: Program, programs: Mapping[str, Program]) -> bool:
    if _is_pattern(rule_.program):
        return PurePosixPath(program.real).match(rule_.program) and _base(program.path) == _base(program.real)
    named = programs.get(rule_.program)
    # A multi-call binary acts by the name it was called with, so file and name must both match.
    return named is not None and named.real == program.real and _base(named.path) == _base(program.path)


def _fits_word(pattern: str, word: str) -> bool:
    if not _is_pattern(pattern):
        return pattern == word
    if word.startswith("-") and not pattern.startswith("-"):
        return False
    return ".." not in PurePosixPath(word).parts and fnmatchcase(word, pattern)


def _never_meant(name: str, word: str) -> bool:
    """Whether a word that a `*` matched is, or may be read as, a dangerous option."""
    long = word.partition("=")[0]
    for option in OPTIONS_NEVER_MEANT.get(name, ()):
        if option.startswith("--"):
            if long.startswith("--") and len(long) > 2 and option.startswith(long):  # programs accept abbreviations
                return True
        elif len(option) > 2:
            if word == option:
                return True
        elif word.startswith("-") and not word.startswith("--") and option[1] in word[1:]:  # combined short options
            return True
    return False


def _is_pattern(word: str) -> bool:
    return any(char in word for char in "*?[")


def _base(path: str) -> str:
    return PurePosixPath(path).name


def _name(path: str) -> str:
    """Return the name of a program without its version: `python` for `/usr/bin/python3.11`."""
    base = _base(path)
    return base if base in RUNS_WHAT_IT_IS_TOLD else _VERSION.sub("", base)
