"""The program, arguments and environment variables of a command."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from retinue.domain.errors import Invalid
from retinue.policy.tools.exec_allowlist import Program
from retinue.text.shell_parser import NotPlain, parse, rendered
from retinue.tools.base import ToolFailed, as_tool_failed

SHELL = "/bin/sh"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
VARIABLES_MAX = 64
VALUE_CHARS_MAX = 32_768

# Shell builtins that are not programs.
_WORDS = """
    . : alias bg cd command eval exec exit export fg getopts hash jobs local read readonly return set shift source times
    trap type ulimit umask unalias unset wait
    """
_OF_THE_SHELL = frozenset(_WORDS.split())
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")

# Variables that control what a program loads, runs or trusts. Inside a sandbox they are harmless to the host.
_RULING = """
    PATH HOME IFS ENV SHELL SHELLOPTS BASHOPTS CDPATH GLOBIGNORE PS4 PROMPT_COMMAND NODE_OPTIONS NODE_PATH
    NODE_EXTRA_CA_CERTS PERL5LIB PERL5OPT PERL5DB PERLLIB RUBYOPT RUBYLIB GEM_PATH GEM_HOME LUA_PATH LUA_CPATH LUA_INIT
    JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS _JAVA_OPTIONS CLASSPATH MAVEN_OPTS GRADLE_OPTS PHPRC PHP_INI_SCAN_DIR
    PAGER MANPAGER EDITOR VISUAL BROWSER LESSOPEN LESSCLOSE LESS TERMINFO TERMINFO_DIRS TERMCAP INPUTRC
    GCONV_PATH GETCONF_DIR HOSTALIASES LOCPATH NLSPATH MALLOC_TRACE RESOLV_HOST_CONF RES_OPTIONS TMPDIR TZDIR
    OPENSSL_CONF OPENSSL_MODULES SSLKEYLOGFILE SSL_CERT_FILE SSL_CERT_DIR CURL_HOME CURL_CA_BUNDLE WGETRC
    MAKEFLAGS MAKEFILES CC CXX LD RUSTC RUSTC_WRAPPER CARGO_HOME GOFLAGS GOPATH
    HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY FTP_PROXY SSH_AUTH_SOCK SSH_ASKPASS SUDO_ASKPASS
    """
_RULING_NAMES = frozenset(_RULING.split())
_RULING_BEGINNINGS = ("LD_", "DYLD_", "PYTHON", "BASH_", "GIT_", "XDG_", "NPM_CONFIG_", "PIP_", "DOCKER_", "KUBE")


def find_programs(names: Iterable[str], *, folder: Path | None = None) -> Mapping[str, Program]:
    """Return the program for each name that has one. Relative paths are resolved from `folder`, if
    given.
    """
    found: dict[str, Program] = {}
    for name in names:
        if "/" in name and not name.startswith("/"):
            if folder is None:
                continue
            path = shutil.which(os.path.normpath(folder / name))
        else:
            path = shutil.which(name, path=PATH)
        if path is not None and path.startswith("/"):
            found[name] = Program(path, os.path.realpath(path))
    return found


def environment(
    workspace: Path, folder: Path, asked: Mapping[str, str], *, given: Mapping[str, str], pty: bool, confined: bool
) -> dict[str, str]:
    """Return the full environment of a command. Nothing of the server's own environment is
    included.

    `server_variables` come from the server and may set anything. `requested` comes from the call
    and is checked.
    """
    if len(asked) > VARIABLES_MAX:
        raise _refused("so many variables", f"at most {VARIABLES_MAX} may be set")
    for name, value in asked.items():
        if not _NAME.fullmatch(name):
            raise _refused(repr(name[:100]), "it is not the name of a variable")
        if "\0" in value or len(value) > VALUE_CHARS_MAX:
            raise _refused(name, f"its value has a NUL in it, or more than {VALUE_CHARS_MAX} characters")
        upper = name.upper()
        if not confined and (upper in _RULING_NAMES or upper.startswith(_RULING_BEGINNINGS)):
            raise _refused(name, "outside a sandbox, no variable may be set that decides what a program runs or loads")
    own = {
        "PATH": PATH,
        "HOME": str(workspace),
        "PWD": str(folder),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color" if pty else "dumb",
        # Commands have no interactive pager.
        "PAGER": "cat",
        "GIT_PAGER": "cat",
    }
    return {**own, **given, **asked}


def argv_of(command: str, folder: Path, *, confined: bool) -> list[str]:
    """Return the argv of a plain command. Anything else needs a shell, which is allowed only in a
    sandbox.
    """
    try:
        line = parse(command)
    except NotPlain as error:
        if not confined:
            raise _no_shell(error.because) from error
        return [SHELL, "-c", command]
    except Invalid as error:
        raise as_tool_failed(error) from error
    argv = line.argv
    if argv is None or (argv[0] in _OF_THE_SHELL and confined):
        if not confined:
            raise _no_shell("it is more than one command")
        return [SHELL, "-c", rendered(line)]
    if confined:
        return list(argv)
    program = find_programs([argv[0]], folder=folder).get(argv[0])
    if program is None:
        raise ToolFailed(
            f"there is no program '{argv[0][:100]}'",
            because="it is not on the PATH of the house",
            try_this="name it by its absolute path",
            code="command.not-found",
        )
    return [program.path, *argv[1:]]


def program_of(command: str) -> str:
    """Return the real path of the program a plain command runs; empty if it needs a shell or is not
    found.
    """
    try:
        argv = parse(command).argv
    except Invalid:
        return ""
    found = find_programs(argv[:1]) if argv is not None else None
    return found[argv[0]].real if argv and found else ""


def _no_shell(because: str) -> ToolFailed:
    return ToolFailed(
        "this command needs a shell, and outside a sandbox there is none",
        because=because,
        try_this="run one plain command at a time, with what is meant literally in single quotes",
        code="command.needs-shell",
    )


def _refused(what: str, because: str) -> ToolFailed:
    return ToolFailed(
        f"{what} cannot be set for a command",
        because=because,
        try_this="leave it out, or pass it as an argument",
        code="command.variable",
    )
