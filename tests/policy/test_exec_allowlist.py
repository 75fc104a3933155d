"""Test the command allowlist: for an allowed line, a shell runs exactly the parsed argv."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retinue.domain.decision import Decision, DecisionKind
from retinue.domain.display_options import Elevation
from retinue.domain.errors import Invalid
from retinue.domain.structs import replace
from retinue.policy.tools.exec_allowlist import (
    CODE_RUNNERS,
    ResolvedProgram,
    decide_by_allowlist,
    list_program_names,
    parse_command_rule,
)
from retinue.policy.tools.exec_placement import (
    CommandAsk,
    CommandLocation,
    CommandSecurity,
    ElevatedPolicy,
    ElevationGates,
    ExecPolicy,
    ExecRequest,
    decide_exec,
    resolve_placement,
)
from retinue.testing.wait_conditions import WAIT_LIMIT_S
from retinue.text.shell_parser import (
    COMMAND_CHARS_MAX,
    COMMANDS_MAX,
    WORDS_MAX,
    CommandLine,
    CommandOperator,
    ShellSyntaxRefused,
    SimpleCommand,
    format_command_line,
    parse_command_line,
    quote_word,
)

PROGRAMS = {
    "ls": ResolvedProgram("/usr/bin/ls", "/usr/bin/ls"),
    "git": ResolvedProgram("/usr/bin/git", "/usr/bin/git"),
    "/usr/bin/git": ResolvedProgram("/usr/bin/git", "/usr/bin/git"),
    "cat": ResolvedProgram("/usr/bin/cat", "/usr/bin/cat"),
    "find": ResolvedProgram("/usr/bin/find", "/usr/bin/find"),
    "sort": ResolvedProgram("/usr/bin/sort", "/usr/bin/sort"),
    "python3": ResolvedProgram("/usr/bin/python3", "/usr/bin/python3.11"),
    "vi": ResolvedProgram("/usr/bin/vi", "/usr/bin/vim.tiny"),
    "/opt/tools/report": ResolvedProgram("/opt/tools/report", "/opt/tools/report"),
    "/opt/tools/deep/x": ResolvedProgram("/opt/tools/deep/x", "/opt/tools/deep/x"),
    "/home/ada/work/ls": ResolvedProgram("/home/ada/work/ls", "/home/ada/work/ls"),
    "/bin/ls": ResolvedProgram("/bin/ls", "/usr/bin/ls"),
    "cp": ResolvedProgram("/bin/cp", "/bin/busybox"),
    "mv": ResolvedProgram("/bin/mv", "/bin/busybox"),
}


def decide_by_rules(rules: list[str], command: str, *, programs: Mapping[str, ResolvedProgram] = PROGRAMS) -> Decision:
    writable = [PurePosixPath("/home/ada/work")]
    return decide_by_allowlist(
        [parse_command_rule(each) for each in rules], parse_command_line(command), programs, writable=writable
    )


# Lines and their parsed commands


@pytest.mark.spec("C62")
@pytest.mark.parametrize(
    "command",
    [
        'git log "$(touch /tmp/x)"',
        'git log "`touch /tmp/x`"',
        'git log "${HOME}"',
        'git log "$HOME"',
        'git log "a\\\\$HOME"',
        "git log $'a\\x41'",
        'git log $"a"',
        "git log $HOME",
        "git log ${HOME}",
        "git log $((1+1))",
        "git log `id`",
        "git log $(id)",
        "cat <(id)",
        "cat >(id)",
        "ls {a,b}",
        "ls a{1..3}",
        "ls *",
        "ls a?",
        "ls [ab]",
        "ls ~",
        "ls ~root",
        "ls --dir=~",
        "ls\nid",
        "ls 'a\nb'",
        'ls "a\nb"',
        "ls \\\nid",
        "cat <<EOF",
        "cat <<< word",
        "cat < a",
        "ls > a",
        "ls 2>&1",
        "ls >> a",
        "(ls)",
        "{ ls; }",
        "ls &",
        "ls & id",
        "ls |& cat",
        "! ls",
        "A=1 ls",
        "ls # id",
        "if ls; then id; fi",
        "while true; do id; done",
        "function f",
        "ls 'a",
        'ls "a',
        "ls \\",
        "ls &&",
        "&& ls",
        "ls ; ; id",
        "ls || | id",
        "ls;",
        "'' a",
    ],
)
def test_the_shell_parser_refuses_syntax_that_a_shell_would_interpret(command: str) -> None:
    with pytest.raises(ShellSyntaxRefused) as refused:
        parse_command_line(command)

    assert refused.value.because and refused.value.try_this


@pytest.mark.parametrize(
    "command", ["", "  ", "ls \x00", "ls \x1b[31m", "ls \u202ecod.exe", "x" * (COMMAND_CHARS_MAX + 1)]
)
def test_the_shell_parser_refuses_an_empty_unprintable_or_oversized_command(command: str) -> None:
    with pytest.raises(Invalid, match=r"command\.invalid"):
        parse_command_line(command)


def test_the_shell_parser_limits_the_number_of_words_and_commands_in_a_line() -> None:
    assert len(parse_command_line(" ".join(["a"] * WORDS_MAX)).commands[0].argv) == WORDS_MAX
    with pytest.raises(ShellSyntaxRefused, match="words"):
        parse_command_line(" ".join(["a"] * (WORDS_MAX + 1)))
    assert len(parse_command_line(";".join(["a"] * COMMANDS_MAX)).commands) == COMMANDS_MAX
    with pytest.raises(ShellSyntaxRefused, match="commands"):
        parse_command_line(";".join(["a"] * (COMMANDS_MAX + 1)))


@pytest.mark.spec("C62")
def test_the_shell_parser_splits_a_command_line_only_outside_quotes() -> None:
    line = parse_command_line("""git log 'a && b' "c | d" e\\;f && ls || cat x ; sort | ls""")

    assert line == CommandLine(
        (
            SimpleCommand(("git", "log", "a && b", "c | d", "e;f")),
            SimpleCommand(("ls",), CommandOperator.AND),
            SimpleCommand(("cat", "x"), CommandOperator.OR),
            SimpleCommand(("sort",), CommandOperator.SEQUENCE),
            SimpleCommand(("ls",), CommandOperator.PIPE),
        )
    )
    assert line.argv is None


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("ls ''", ("ls", "")),
        ("ls a''b", ("ls", "ab")),
        ('ls "\\$x" "\\a" "\\\\"', ("ls", "$x", "\\a", "\\")),
        ("ls '$x `id` *'", ("ls", "$x `id` *")),
        ("ls a\\ b\\*", ("ls", "a b*")),
        ("  ls\t-l  ", ("ls", "-l")),
        ("ls a#b x=y é", ("ls", "a#b", "x=y", "é")),
    ],
)
def test_the_shell_parser_reads_quotes_and_escapes_like_a_shell(command: str, argv: tuple[str, ...]) -> None:
    assert parse_command_line(command).argv == argv


# Compared with a real shell

RECORDER = """#!/bin/sh
printf '%s\\0' "$0" "$@" > "$RECORDED/$$"
"""
PLAIN_FRAGMENTS = st.sampled_from(
    [
        *(" ", " ", "\t", "a", "b.c", "-x", "=", "y=1", "%", "^", "@", "+", "é", "\u00a0", "-", ",", "a#"),
        *("'$x *'", "'a b'", '"a b"', '"\\$x"', '"\\\\"', '"\\a"', '"it\'s"', "''", '""', "\\ ", "\\$", "\\'", '\\"'),
        *("\\\\", "\\*", "\\;", "\\~", "\\#", "'\"'", "\\a"),
    ]
)
HOSTILE_FRAGMENTS = st.sampled_from(
    [
        *(
            '"`"',
            '"$x"',
            "$'a'",
            "$x",
            "`",
            "*",
            "?",
            "[a]",
            "{a,b}",
            "~",
            "!",
            "(",
            ")",
            "<",
            ">",
            "&",
            "\n",
            "'",
            '"',
        ),
        *("\\", "#", "\u0085"),
    ]
)
FREE_TEXT = st.text(alphabet="ab \t'\"\\=-é\u4e2d\x81\x82\u2003;|&#", max_size=3)
FRAGMENTS = st.sampled_from([PLAIN_FRAGMENTS] * 12 + [HOSTILE_FRAGMENTS, FREE_TEXT]).flatmap(lambda kind: kind)
ARGUMENTS = st.lists(FRAGMENTS, max_size=8).map(lambda parts: " " + "".join(parts))
LINES = st.lists(st.tuples(ARGUMENTS, st.sampled_from([" && ", "||", ";", " | "])), min_size=1, max_size=3)
ANY_WORD = st.text(
    alphabet=st.characters(
        exclude_categories=("Cs", "Cc", "Zl", "Zp"),
        exclude_characters="\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
    ),
    max_size=20,
)
SHELLS = [["/bin/sh", "-c"], ["/bin/bash", "-c"]]


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a program that records how it was called, in a folder with files that a pattern can match."""
    folder = tmp_path_factory.mktemp("recorder")
    program = folder / "rec"
    program.write_text(RECORDER)
    program.chmod(0o755)
    for name in ("a", "b.c", "-x"):
        (folder / name).touch()
    return program


def run_by(shell: list[str], command: str, recorder: Path) -> Counter[tuple[str, ...]]:
    with tempfile.TemporaryDirectory(dir=recorder.parent) as folder:
        environment = {"RECORDED": folder, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "x": "EXPANDED", "HOME": "/h"}
        subprocess.run(
            [*shell, command],
            env=environment,
            cwd=recorder.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=WAIT_LIMIT_S,
            check=False,
        )
        recorded = [(Path(folder) / each).read_bytes() for each in os.listdir(folder) if each.isdigit()]
    return Counter(tuple(os.fsdecode(word) for word in each.split(b"\0")[:-1]) for each in recorded)


def expected_commands(line: CommandLine) -> Counter[tuple[str, ...]]:
    """Return the commands that run when each one succeeds."""
    ran: list[tuple[str, ...]] = []
    running = True
    for part in line.commands:
        if part.operator is not CommandOperator.PIPE:
            running = part.operator is not CommandOperator.OR
        if running:
            ran.append(part.argv)
    return Counter(ran)


@pytest.mark.spec("C62")
@settings(max_examples=250, deadline=None)
@given(LINES)
@example([(" \"$x\" '$x'", ";")])
@example([(" ~", ";")])
@example([(" [a] b*", ";")])
@example([(" {a,b}", ";")])
@example([(" \\$x", "||"), (" a", " && "), (" b", ";")])
def test_a_command_line_that_the_shell_parser_accepts_runs_the_same_argv_in_a_real_shell(
    recorder: Path, pieces: list[tuple[str, str]]
) -> None:
    command = "".join(f"{recorder}{arguments}{follows}" for arguments, follows in pieces)
    command = command[: -len(pieces[-1][1])]
    try:
        line = parse_command_line(command)
    except Invalid:
        return
    if any(part.argv[0] != str(recorder) for part in line.commands):
        return  # no other program is run here

    for shell in SHELLS:
        assert run_by(shell, command, recorder) == expected_commands(line)
        assert run_by(shell, format_command_line(line), recorder) == expected_commands(line)


@pytest.mark.spec("C62")
@settings(max_examples=100, deadline=None)
@given(st.lists(ANY_WORD, max_size=4))
def test_quoted_words_round_trip_through_the_shell_parser_and_a_shell(recorder: Path, words: list[str]) -> None:
    line = CommandLine((SimpleCommand((str(recorder), *words)),))

    assert parse_command_line(format_command_line(line)) == line
    assert parse_command_line(" ".join(map(quote_word, line.commands[0].argv))) == line
    assert run_by(SHELLS[0], format_command_line(line), recorder) == expected_commands(line)


@pytest.mark.parametrize(
    ("word", "seen"), [('"$x"', "EXPANDED"), ("~", "/h"), ("[a]", "a"), ("b*", "b.c"), ("$((1+1))", "2")]
)
def test_a_real_shell_expands_the_words_that_the_shell_parser_refuses(recorder: Path, word: str, seen: str) -> None:
    """The negative control: a shell runs the lines that the parser refuses as something else."""
    assert run_by(SHELLS[0], f"{recorder} {word}", recorder) == Counter([(str(recorder), seen)])


# The allowlist


@pytest.mark.spec("C62")
@pytest.mark.parametrize(
    ("rules", "command"),
    [
        (["git status"], "git status"),
        (["git status"], "/usr/bin/git status"),
        (["ls *"], "ls"),
        (["ls *"], "ls -la notes"),
        (["ls *"], "/bin/ls -la"),
        (["/bin/ls *"], "ls -la"),
        (["cat *.md"], "cat notes.md"),
        (["/opt/tools/* *"], "/opt/tools/report weekly"),
        (["ls *", "sort *"], "ls | sort -n && ls ; sort || ls"),
        (["python3 /opt/tools/x.py"], "python3 /opt/tools/x.py"),
        (["find *"], "find . -name 'a*'"),
        (["sort *"], "sort -rn --key=2"),
        (["find . -delete"], "find . -delete"),
        (["cp *"], "cp a b"),
    ],
)
def test_a_command_that_matches_a_rule_of_the_exec_allowlist_is_allowed(rules: list[str], command: str) -> None:
    assert decide_by_rules(rules, command).kind is DecisionKind.ALLOW


@pytest.mark.spec("C62")
@pytest.mark.parametrize(
    ("rules", "command", "because"),
    [
        ([], "ls", "no rule"),
        (["git status"], "git status -s", "no rule"),
        (["git status"], "git", "no rule"),
        (["git log *"], "git log", "no rule"),
        (["git *"], "git -c 'alias.x=!id' x", "no rule"),
        (["ls *"], "ls | cat x", "no rule"),
        (["ls *"], "ls && git status", "no rule"),
        (["ls *"], "./ls", "depends on the current folder"),
        (["ls *"], "work/ls", "depends on the current folder"),
        (["ls *"], "/home/ada/work/ls", "the agent can change"),
        (["/home/ada/work/* *"], "/home/ada/work/ls", "the agent can change"),
        (["ls *"], "unknown", "no program"),
        (["/opt/tools/* *"], "/opt/tools/deep/x", "no rule"),
        (["cat *.md"], "cat --show-all.md", "no rule"),
        (["cat notes/*"], "cat notes/../../etc/passwd", "no rule"),
        (["find *"], "find . -exec id", "no rule"),
        (["find *"], "find . -delete", "no rule"),
        (["find . *"], "find . -fprintf x y", "no rule"),
        (["sort *"], "sort -o x y", "no rule"),
        (["sort *"], "sort -nox y", "no rule"),
        (["sort *"], "sort --out=x y", "no rule"),
        (["sort *"], "sort --compress-prog=id y", "no rule"),
        (["python3 *"], "python3 -c 'import os'", "no rule"),
        (["python3 /opt/*"], "python3 /opt/x.py", "no rule"),
        (["/usr/bin/* *"], "python3 x.py", "no rule"),
        (["vi *"], "vi notes", "no rule"),
        (["cp *"], "mv a b", "no rule"),
    ],
)
def test_a_command_that_matches_no_rule_of_the_exec_allowlist_needs_approval(
    rules: list[str], command: str, because: str
) -> None:
    decision = decide_by_rules(rules, command)

    assert decision.kind is DecisionKind.ASK
    assert because in decision.because


@pytest.mark.spec("C62")
@pytest.mark.parametrize("name", sorted(CODE_RUNNERS - {".", "time"}))
def test_a_code_runner_is_never_allowed_by_a_wildcard_rule_of_the_exec_allowlist(name: str) -> None:
    for found in (name, f"{name}-3.11", f"{name}-12"):
        program = {found: ResolvedProgram(f"/usr/bin/{found}", f"/usr/bin/{found}")}

        assert decide_by_rules([f"{found} *"], f"'{found}' a", programs=program).kind is DecisionKind.ASK
        assert decide_by_rules(["/usr/bin/* *"], f"'{found}' a", programs=program).kind is DecisionKind.ASK


def test_a_symlink_to_an_interpreter_counts_as_an_interpreter_in_the_exec_allowlist() -> None:
    harmless = {"report": ResolvedProgram("/usr/local/bin/report", "/usr/bin/perl")}

    assert decide_by_rules(["report *"], "report -e 1", programs=harmless).kind is DecisionKind.ASK


@pytest.mark.parametrize(
    "text",
    ["", "* *", "li* x", "./ls", "a/b", "ls 'a b'", "ls $HOME", "ls; id", "ls | cat", "/opt/../bin/ls", "ls \x07"],
)
def test_an_ambiguous_rule_of_the_exec_allowlist_is_invalid(text: str) -> None:
    with pytest.raises(Invalid, match=r"command\.rule_invalid"):
        parse_command_rule(text)


def test_the_exec_allowlist_lists_program_names_of_the_command_line_and_the_rules() -> None:
    named = list_program_names(
        parse_command_line("ls | cat x"), [parse_command_rule("git status"), parse_command_rule("/opt/* *")]
    )

    assert named == {"ls", "cat", "git"}


# Where a command runs, and who is asked

OPEN_GATES = ElevationGates(is_for_owner=True, is_foreground=True)
LISTED = Decision(DecisionKind.ALLOW, "listed")
NOT_LISTED = Decision(DecisionKind.ASK, "not listed")


@pytest.mark.spec("C60")
@given(
    st.builds(
        ExecPolicy,
        host=st.sampled_from(CommandLocation),
        security=st.sampled_from(CommandSecurity),
        ask=st.sampled_from(CommandAsk),
        sandbox_security=st.sampled_from(CommandSecurity),
        sandbox_ask=st.sampled_from(CommandAsk),
        elevated=st.sampled_from(ElevatedPolicy),
    ),
    st.builds(
        ExecRequest,
        host=st.none() | st.sampled_from(CommandLocation),
        security=st.none() | st.sampled_from(CommandSecurity),
        ask=st.none() | st.sampled_from(CommandAsk),
    ),
    st.sampled_from([LISTED, NOT_LISTED]),
    st.booleans(),
)
def test_the_arguments_of_a_call_never_loosen_the_exec_policy(
    policy: ExecPolicy, wish: ExecRequest, on_list: Decision, sandbox_works: bool
) -> None:
    strict = [DecisionKind.DENY, DecisionKind.ASK, DecisionKind.ALLOW]
    plain = resolve_placement(
        policy, ExecRequest(host=wish.host and policy.host), ElevationGates(), sandbox_works=sandbox_works
    )
    wished = resolve_placement(policy, wish, ElevationGates(), sandbox_works=sandbox_works)

    if wished.where is plain.where:
        assert strict.index(decide_exec(wished, on_list).kind) <= strict.index(decide_exec(plain, on_list).kind)
    else:
        assert (plain.where, wished.where) == (CommandLocation.HOST, CommandLocation.SANDBOX) or wished.is_refused


@pytest.mark.spec("C60")
def test_an_exec_call_cannot_choose_the_host_without_elevation() -> None:
    resolved = resolve_placement(ExecPolicy(), ExecRequest(host=CommandLocation.HOST), OPEN_GATES, sandbox_works=True)

    assert decide_exec(resolved, LISTED).is_denied
    assert "elevated" in decide_exec(resolved, LISTED).because


@pytest.mark.spec("C60")
@pytest.mark.parametrize(
    ("gates", "level", "because"),
    [
        (OPEN_GATES, ElevatedPolicy.OFF, "tools.exec.elevated"),
        (ElevationGates(is_for_owner=False, is_foreground=True), ElevatedPolicy.FULL, "owner"),
        (ElevationGates(is_for_owner=True, is_foreground=False), ElevatedPolicy.FULL, "no person takes part"),
        (
            ElevationGates(is_for_owner=True, is_foreground=True, is_agent_permitted=False),
            ElevatedPolicy.FULL,
            "this agent",
        ),
    ],
)
def test_a_single_closed_elevation_gate_keeps_an_exec_command_in_the_sandbox(
    gates: ElevationGates, level: ElevatedPolicy, because: str
) -> None:
    resolved = resolve_placement(ExecPolicy(elevated=level), ExecRequest(elevated=True), gates, sandbox_works=True)

    assert resolved.where is CommandLocation.SANDBOX
    assert decide_exec(resolved, LISTED).is_denied and because in decide_exec(resolved, LISTED).because


@pytest.mark.spec("C60")
def test_an_elevated_exec_command_runs_on_the_host_as_the_elevated_setting_decides() -> None:
    def elevated(level: ElevatedPolicy, ask: CommandAsk | None = None) -> Decision:
        resolved = resolve_placement(
            ExecPolicy(elevated=level), ExecRequest(elevated=True, ask=ask), OPEN_GATES, sandbox_works=True
        )
        assert resolved.where is CommandLocation.HOST
        return decide_exec(resolved, NOT_LISTED)

    assert elevated(ElevatedPolicy.ASK).kind is DecisionKind.ASK
    bare = ExecPolicy(elevated=ElevatedPolicy.ASK, security=CommandSecurity.FULL, ask=CommandAsk.OFF)
    assert (
        decide_exec(
            resolve_placement(bare, ExecRequest(elevated=True), OPEN_GATES, sandbox_works=True), NOT_LISTED
        ).kind
        is DecisionKind.ASK
    )
    assert elevated(ElevatedPolicy.FULL).kind is DecisionKind.ALLOW
    assert elevated(ElevatedPolicy.FULL, ask=CommandAsk.ALWAYS).kind is DecisionKind.ASK


@pytest.mark.spec("C30", "C60")
@pytest.mark.parametrize(
    ("setting", "level", "where", "verdict"),
    [
        (ElevatedPolicy.FULL, None, CommandLocation.SANDBOX, DecisionKind.ALLOW),  # elevation was not requested
        (ElevatedPolicy.FULL, Elevation.OFF, CommandLocation.SANDBOX, DecisionKind.ALLOW),
        (ElevatedPolicy.FULL, Elevation.ON, CommandLocation.HOST, DecisionKind.ASK),
        (ElevatedPolicy.FULL, Elevation.ASK, CommandLocation.HOST, DecisionKind.ASK),
        (ElevatedPolicy.FULL, Elevation.FULL, CommandLocation.HOST, DecisionKind.ALLOW),
        (ElevatedPolicy.ASK, Elevation.FULL, CommandLocation.HOST, DecisionKind.ASK),  # never looser than the setting
        (ElevatedPolicy.OFF, Elevation.FULL, CommandLocation.SANDBOX, DecisionKind.ALLOW),
    ],
)
def test_session_elevation_applies_to_all_exec_commands_and_is_never_looser_than_the_setting(
    setting: ElevatedPolicy, level: Elevation | None, where: CommandLocation, verdict: DecisionKind
) -> None:
    gates = replace(OPEN_GATES, level=level)
    resolved = resolve_placement(ExecPolicy(elevated=setting), ExecRequest(), gates, sandbox_works=True)

    assert (resolved.where, decide_exec(resolved, NOT_LISTED).kind) == (where, verdict)
    inside = resolve_placement(
        ExecPolicy(elevated=setting), ExecRequest(host=CommandLocation.SANDBOX), gates, sandbox_works=True
    )
    assert inside.where is CommandLocation.SANDBOX, "a call may always request the stricter location"
    for closed in (
        replace(gates, is_for_owner=False),
        replace(gates, is_foreground=False),
        replace(gates, is_agent_permitted=False),
    ):
        kept = resolve_placement(ExecPolicy(elevated=setting), ExecRequest(), closed, sandbox_works=True)
        assert kept.where is CommandLocation.SANDBOX and not kept.is_refused


@pytest.mark.spec("C30")
def test_session_elevation_off_denies_an_exec_call_that_asks_for_elevation() -> None:
    gates = replace(OPEN_GATES, level=Elevation.OFF)
    resolved = resolve_placement(
        ExecPolicy(elevated=ElevatedPolicy.FULL), ExecRequest(elevated=True), gates, sandbox_works=True
    )

    assert decide_exec(resolved, LISTED).is_denied and "/elevated" in decide_exec(resolved, LISTED).because


@pytest.mark.spec("C60")
def test_exec_placement_needs_approval_for_the_host_if_the_sandbox_does_not_work() -> None:
    resolved = resolve_placement(ExecPolicy(), ExecRequest(), OPEN_GATES, sandbox_works=False)

    assert resolved.where is CommandLocation.HOST
    assert decide_exec(resolved, LISTED).kind is DecisionKind.ASK
    assert decide_exec(
        resolve_placement(ExecPolicy(), ExecRequest(), OPEN_GATES, sandbox_works=True), NOT_LISTED
    ).is_allowed


@pytest.mark.spec("C60")
def test_an_exec_allowlist_with_ask_off_denies_unlisted_commands() -> None:
    resolved = resolve_placement(
        ExecPolicy(host=CommandLocation.HOST, ask=CommandAsk.OFF), ExecRequest(), OPEN_GATES, sandbox_works=True
    )

    assert decide_exec(resolved, LISTED).is_allowed
    assert decide_exec(resolved, NOT_LISTED).is_denied
    assert re.search("not listed", decide_exec(resolved, NOT_LISTED).because)
