"""Builds the program, arguments and environment variables of a command."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from retinue.domain.errors import Invalid
from retinue.policy.tools.exec_allowlist import ResolvedProgram
from retinue.text.shell_parser import ShellSyntaxRefused, format_command_line, parse_command_line
from retinue.tools.base import as_tool_failed
from retinue.tools.shell.errors import (
    CommandNeedsShell,
    ProgramNotFound,
    TooManyVariables,
    VariableDenied,
    VariableNameInvalid,
    VariableValueInvalid,
)

SHELL = "/bin/sh"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
VARIABLES_MAX = 64
VALUE_CHARS_MAX = 32_768

# Shell builtins that are not programs.
_SHELL_BUILTIN_NAMES = """
    . : alias bg cd command eval exec exit export fg getopts hash jobs local read readonly return set shift source times
    trap type ulimit umask unalias unset wait
    """
_SHELL_BUILTINS = frozenset(_SHELL_BUILTIN_NAMES.split())
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")

# Variables that control what a program loads, runs or trusts. Inside a sandbox they are harmless to the host.
_SENSITIVE_VARIABLE_NAMES = """
    PATH HOME IFS ENV SHELL SHELLOPTS BASHOPTS CDPATH GLOBIGNORE PS4 PROMPT_COMMAND NODE_OPTIONS NODE_PATH
    NODE_EXTRA_CA_CERTS PERL5LIB PERL5OPT PERL5DB PERLLIB RUBYOPT RUBYLIB GEM_PATH GEM_HOME LUA_PATH LUA_CPATH LUA_INIT
    JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS _JAVA_OPTIONS CLASSPATH MAVEN_OPTS GRADLE_OPTS PHPRC PHP_INI_SCAN_DIR
    PAGER MANPAGER EDITOR VISUAL BROWSER LESSOPEN LESSCLOSE LESS TERMINFO TERMINFO_DIRS TERMCAP INPUTRC
    GCONV_PATH GETCONF_DIR HOSTALIASES LOCPATH NLSPATH MALLOC_TRACE RESOLV_HOST_CONF RES_OPTIONS TMPDIR TZDIR
    OPENSSL_CONF OPENSSL_MODULES SSLKEYLOGFILE SSL_CERT_FILE SSL_CERT_DIR CURL_HOME CURL_CA_BUNDLE WGETRC
    MAKEFLAGS MAKEFILES CC CXX LD RUSTC RUSTC_WRAPPER CARGO_HOME GOFLAGS GOPATH
    HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY FTP_PROXY SSH_AUTH_SOCK SSH_ASKPASS SUDO_ASKPASS
    """
_SENSITIVE_VARIABLES = frozenset(_SENSITIVE_VARIABLE_NAMES.split())
_SENSITIVE_PREFIXES = ("LD_", "DYLD_", "PYTHON", "BASH_", "GIT_", "XDG_", "NPM_CONFIG_", "PIP_", "DOCKER_", "KUBE")


def find_programs(names: Iterable[str], *, folder: Path | None = None) -> Mapping[str, ResolvedProgram]:
    """Find the program for each name. A name without a program is left out.

    Relative paths are resolved against `folder`, if given.
    """
    found: dict[str, ResolvedProgram] = {}
    for name in names:
        if "/" in name and not name.startswith("/"):
            if folder is None:
                continue
            path = shutil.which(os.path.normpath(folder / name))
        else:
            path = shutil.which(name, path=PATH)
        if path is not None and path.startswith("/"):
            found[name] = ResolvedProgram(path, os.path.realpath(path))
    return found


def build_environment(
    workspace: Path,
    folder: Path,
    requested: Mapping[str, str],
    *,
    server_variables: Mapping[str, str],
    pty: bool,
    is_confined: bool,
) -> dict[str, str]:
    """Return all environment variables of a command. It inherits none from the server process.

    `server_variables` are chosen by the server, so they are not checked. `requested` are set by the
    call, so they are checked.
    """
    if len(requested) > VARIABLES_MAX:
        raise TooManyVariables(variables_max=VARIABLES_MAX)
    for name, value in requested.items():
        if not _NAME.fullmatch(name):
            raise VariableNameInvalid(name)
        if "\0" in value or len(value) > VALUE_CHARS_MAX:
            raise VariableValueInvalid(name, chars_max=VALUE_CHARS_MAX)
        upper = name.upper()
        if not is_confined and (upper in _SENSITIVE_VARIABLES or upper.startswith(_SENSITIVE_PREFIXES)):
            raise VariableDenied(name)
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
    return {**own, **server_variables, **requested}


def build_argv(command: str, folder: Path, *, is_confined: bool) -> list[str]:
    """Return the argv of a command. A plain command runs without a shell.

    Any other command needs a shell, which is allowed only in a sandbox.
    """
    try:
        line = parse_command_line(command)
    except ShellSyntaxRefused as error:
        if not is_confined:
            raise CommandNeedsShell(because=error.because) from error
        return [SHELL, "-c", command]
    except Invalid as error:
        raise as_tool_failed(error) from error
    argv = line.argv
    if argv is None or (argv[0] in _SHELL_BUILTINS and is_confined):
        if not is_confined:
            raise CommandNeedsShell(because="it is more than one command")
        return [SHELL, "-c", format_command_line(line)]
    if is_confined:
        return list(argv)
    program = find_programs([argv[0]], folder=folder).get(argv[0])
    if program is None:
        raise ProgramNotFound(argv[0])
    return [program.path, *argv[1:]]


def find_program(command: str) -> str:
    """Return the real path of the program that a plain command runs.

    Empty if the command needs a shell or the program is not found.
    """
    try:
        argv = parse_command_line(command).argv
    except Invalid:
        return ""
    found = find_programs(argv[:1]) if argv is not None else None
    return found[argv[0]].real_path if argv and found else ""
