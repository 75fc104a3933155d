"""The allowlist of commands that run without approval.

A rule is a line of words such as `git status` or `ls *`:

- The first word is a program: a name, which is looked up on the server's PATH, or an absolute path,
  in which `*` matches one component. Symbolic links are resolved, and the rule applies to the file.
- Each further word matches one argument. `*` and `?` in it match any characters, but never an
  argument with the component `..`. They match a leading dash only if the word itself begins with one.
- If the last word is `*`, it matches any number of arguments.

Programs that execute their arguments or input (shells, interpreters, `env`, `xargs`, `ssh`, ...)
are allowed only by a rule without any `*`, `?` or `[`. If an otherwise harmless program has an option
that runs a program or writes a file, that option is allowed only if the rule contains it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath, PurePosixPath

from msgspec import Struct

from retinue.config import validators
from retinue.domain.decision import Decision, DecisionKind
from retinue.policy.errors import CommandRuleInvalid
from retinue.text.shell_parser import CommandLine

ANY_ARGUMENTS = "*"
ALLOWLIST_KEY = "tools.exec.allow"

# Programs that run, load or write what their arguments, their input or a configuration file tells them to.
_CODE_RUNNER_NAMES = """
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
CODE_RUNNERS = frozenset(_CODE_RUNNER_NAMES.split())
_MULTI_CALL_BINARIES = frozenset({"busybox", "toybox", "coreutils"})
_VERSION = re.compile(r"[-.]?[0-9][0-9.]*$")

# Options of otherwise harmless programs that run a program, or write or remove a file.
DANGEROUS_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "find": ("-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint", "-fprint0", "-fprintf", "-fls"),
    "fd": ("-x", "-X", "--exec", "--exec-batch"),
    "sort": ("-o", "-T", "--output", "--compress-program", "--temporary-directory"),
    "rg": ("--pre", "--hostname-bin"),
    "tree": ("-o", "-R"),
    "date": ("-s", "--set"),
    "file": ("-C", "-m", "--compile", "--magic-file"),
}


class CommandRule(Struct, frozen=True):
    program: str
    arguments: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        return not any(_is_pattern(word) for word in (self.program, *self.arguments))


class ResolvedProgram(Struct, frozen=True):
    """A program on this machine: its path, and the path of the file after symbolic links are resolved."""

    path: str
    real_path: str


def parse_command_rule(text: str) -> CommandRule:
    """Parse a rule of the allowlist."""
    if reason := validators.check_command_rule(text):
        raise CommandRuleInvalid(text, because=f"it {reason}")
    program, *arguments = text.split()
    return CommandRule(program, tuple(arguments))


def list_program_names(line: CommandLine, rules: Iterable[CommandRule]) -> set[str]:
    """Return the program names that must be looked up on this machine before `decide_by_allowlist` is called."""
    named = {each.program for each in rules if not _is_pattern(each.program)}
    return named | {part.argv[0] for part in line.commands}


def decide_by_allowlist(
    rules: Sequence[CommandRule],
    line: CommandLine,
    programs: Mapping[str, ResolvedProgram],
    *,
    writable: Sequence[PurePath] = (),
) -> Decision:
    """Decide whether the allowlist allows a command line: a rule must match each command in it.

    A program that is in one of the `writable` directories is never allowed, because the agent could have written it.
    """
    for part in line.commands:
        name = part.argv[0]
        program = programs.get(name)
        if "/" in name and not name.startswith("/"):
            return _ask(f"'{name[:100]}' depends on the current folder")
        if program is None:
            return _ask(f"no program '{name[:100]}' on the PATH of the server")
        if any(
            PurePosixPath(path).is_relative_to(each) for each in writable for path in (program.path, program.real_path)
        ):
            return _ask(f"the agent can change '{program.path}' itself")
        if not any(_matches_rule(each, part.argv[1:], program, programs) for each in rules):
            return _ask(f"no rule of `{ALLOWLIST_KEY}` matches '{' '.join(part.argv)[:200]}'")
    return Decision(DecisionKind.ALLOW, f"every command matches a rule of `{ALLOWLIST_KEY}`", setting_key=ALLOWLIST_KEY)


def _ask(because: str) -> Decision:
    return Decision(DecisionKind.ASK, because, setting_key=ALLOWLIST_KEY)


def _matches_rule(
    rule: CommandRule, arguments: Sequence[str], program: ResolvedProgram, programs: Mapping[str, ResolvedProgram]
) -> bool:
    if not _is_same_program(rule, program, programs):
        return False
    names = {_program_name(program.path)} | ({_program_name(program.real_path)} - _MULTI_CALL_BINARIES)
    if names & CODE_RUNNERS and not rule.is_exact:
        return False
    open_ended = rule.arguments[-1:] == (ANY_ARGUMENTS,)
    fixed = rule.arguments[:-1] if open_ended else rule.arguments
    if len(arguments) < len(fixed) or (len(arguments) > len(fixed) and not open_ended):
        return False
    if not all(_matches_word(pattern, word) for pattern, word in zip(fixed, arguments, strict=False)):
        return False
    loose = [word for index, word in enumerate(arguments) if index >= len(fixed) or _is_pattern(fixed[index])]
    return not any(_is_dangerous_option(name, word) for name in names for word in loose)


def _is_same_program(rule: CommandRule, program: ResolvedProgram, programs: Mapping[str, ResolvedProgram]) -> bool:
    if _is_pattern(rule.program):
        return PurePosixPath(program.real_path).match(rule.program) and _basename(program.path) == _basename(
            program.real_path
        )
    named = programs.get(rule.program)
    # The name by which a multi-call binary is called decides what it does, so file and name must both match.
    return (
        named is not None and named.real_path == program.real_path and _basename(named.path) == _basename(program.path)
    )


def _matches_word(pattern: str, word: str) -> bool:
    if not _is_pattern(pattern):
        return pattern == word
    if word.startswith("-") and not pattern.startswith("-"):
        return False
    return ".." not in PurePosixPath(word).parts and fnmatchcase(word, pattern)


def _is_dangerous_option(name: str, word: str) -> bool:
    """Whether a program could interpret this argument, which a pattern matched, as a dangerous option."""
    long = word.partition("=")[0]
    for option in DANGEROUS_OPTIONS.get(name, ()):
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


def _basename(path: str) -> str:
    return PurePosixPath(path).name


def _program_name(path: str) -> str:
    """Return the name of a program without its version: `python` for `/usr/bin/python3.11`."""
    base = _basename(path)
    return base if base in CODE_RUNNERS else _VERSION.sub("", base)
