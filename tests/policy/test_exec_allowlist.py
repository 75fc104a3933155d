"""What the list of commands lets through: a shell asked for the same line would run exactly the same argv."""

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

from retinue.domain.decision import Decision, Verdict
from retinue.domain.display_options import Elevation
from retinue.domain.errors import Invalid
from retinue.domain.structs import replace
from retinue.policy.tools.exec_allowlist import RUNS_WHAT_IT_IS_TOLD, Program, allows, programs_named, rule
from retinue.policy.tools.exec_placement import (
    Asking,
    Elevated,
    ExecPolicy,
    Gates,
    Security,
    Where,
    Wish,
    decide,
    resolve,
)
from retinue.testing.waiting import WAIT_LIMIT_S
from retinue.text.shell_parser import (
    COMMAND_CHARS_MAX,
    PARTS_MAX,
    WORDS_MAX,
    Follows,
    Line,
    NotPlain,
    Part,
    parse,
    quoted,
    rendered,
)

BIN = {
    "ls": Program("/usr/bin/ls", "/usr/bin/ls"),
    "git": Program("/usr/bin/git", "/usr/bin/git"),
    "/usr/bin/git": Program("/usr/bin/git", "/usr/bin/git"),
    "cat": Program("/usr/bin/cat", "/usr/bin/cat"),
    "find": Program("/usr/bin/find", "/usr/bin/find"),
    "sort": Program("/usr/bin/sort", "/usr/bin/sort"),
    "python3": Program("/usr/bin/python3", "/usr/bin/python3.11"),
    "vi": Program("/usr/bin/vi", "/usr/bin/vim.tiny"),
    "/opt/tools/report": Program("/opt/tools/report", "/opt/tools/report"),
    "/opt/tools/deep/x": Program("/opt/tools/deep/x", "/opt/tools/deep/x"),
    "/home/ada/work/ls": Program("/home/ada/work/ls", "/home/ada/work/ls"),
    "/bin/ls": Program("/bin/ls", "/usr/bin/ls"),
    "cp": Program("/bin/cp", "/bin/busybox"),
    "mv": Program("/bin/mv", "/bin/busybox"),
}


def listed(rules: list[str], command: str, *, programs: Mapping[str, Program] = BIN) -> Decision:
    writable = [PurePosixPath("/home/ada/work")]
    return allows([rule(each) for each in rules], parse(command), programs, writable=writable)


# A line and its meaning


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
def test_whatever_a_shell_would_read_in_its_own_way_is_refused(command: str) -> None:
    with pytest.raises(NotPlain) as refused:
        parse(command)

    assert refused.value.because and refused.value.try_this


@pytest.mark.parametrize(
    "command", ["", "  ", "ls \x00", "ls \x1b[31m", "ls \u202ecod.exe", "x" * (COMMAND_CHARS_MAX + 1)]
)
def test_a_command_that_cannot_be_shown_is_none(command: str) -> None:
    with pytest.raises(Invalid, match=r"command\.invalid"):
        parse(command)


def test_a_line_is_bounded() -> None:
    assert len(parse(" ".join(["a"] * WORDS_MAX)).parts[0].argv) == WORDS_MAX
    with pytest.raises(NotPlain, match="words"):
        parse(" ".join(["a"] * (WORDS_MAX + 1)))
    assert len(parse(";".join(["a"] * PARTS_MAX)).parts) == PARTS_MAX
    with pytest.raises(NotPlain, match="commands"):
        parse(";".join(["a"] * (PARTS_MAX + 1)))


@pytest.mark.spec("C62")
def test_a_line_is_split_outside_quotes_only() -> None:
    line = parse("""git log 'a && b' "c | d" e\\;f && ls || cat x ; sort | ls""")

    assert line == Line(
        (
            Part(("git", "log", "a && b", "c | d", "e;f")),
            Part(("ls",), Follows.AND),
            Part(("cat", "x"), Follows.OR),
            Part(("sort",), Follows.THEN),
            Part(("ls",), Follows.PIPE),
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
def test_words_are_read_as_a_shell_reads_them(command: str, argv: tuple[str, ...]) -> None:
    assert parse(command).argv == argv


# Against a real shell

RECORDER = """#!/bin/sh
printf '%s\\0' "$0" "$@" > "$RECORDED/$$"
"""
PLAIN = st.sampled_from(
    [
        *(" ", " ", "\t", "a", "b.c", "-x", "=", "y=1", "%", "^", "@", "+", "é", "\u00a0", "-", ",", "a#"),
        *("'$x *'", "'a b'", '"a b"', '"\\$x"', '"\\\\"', '"\\a"', '"it\'s"', "''", '""', "\\ ", "\\$", "\\'", '\\"'),
        *("\\\\", "\\*", "\\;", "\\~", "\\#", "'\"'", "\\a"),
    ]
)
HOSTILE = st.sampled_from(
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
FREE = st.text(alphabet="ab \t'\"\\=-é\u4e2d\x81\x82\u2003;|&#", max_size=3)
FRAGMENTS = st.sampled_from([PLAIN] * 12 + [HOSTILE, FREE]).flatmap(lambda kind: kind)
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
    """A program that writes down how it was called, in a folder with files for a pattern to find."""
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


def meant(line: Line) -> Counter[tuple[str, ...]]:
    """Which commands run where each one succeeds."""
    ran: list[tuple[str, ...]] = []
    running = True
    for part in line.parts:
        if part.follows is not Follows.PIPE:
            running = part.follows is not Follows.OR
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
def test_what_is_accepted_is_what_a_shell_would_run(recorder: Path, pieces: list[tuple[str, str]]) -> None:
    command = "".join(f"{recorder}{arguments}{follows}" for arguments, follows in pieces)
    command = command[: -len(pieces[-1][1])]
    try:
        line = parse(command)
    except Invalid:
        return
    if any(part.argv[0] != str(recorder) for part in line.parts):
        return  # no other program is run here

    for shell in SHELLS:
        assert run_by(shell, command, recorder) == meant(line)
        assert run_by(shell, rendered(line), recorder) == meant(line)


@pytest.mark.spec("C62")
@settings(max_examples=100, deadline=None)
@given(st.lists(ANY_WORD, max_size=4))
def test_any_words_survive_being_quoted(recorder: Path, words: list[str]) -> None:
    line = Line((Part((str(recorder), *words)),))

    assert parse(rendered(line)) == line
    assert parse(" ".join(map(quoted, line.parts[0].argv))) == line
    assert run_by(SHELLS[0], rendered(line), recorder) == meant(line)


@pytest.mark.parametrize(
    ("word", "seen"), [('"$x"', "EXPANDED"), ("~", "/h"), ("[a]", "a"), ("b*", "b.c"), ("$((1+1))", "2")]
)
def test_the_recorder_sees_an_expansion_that_is_let_through(recorder: Path, word: str, seen: str) -> None:
    """The negative control: what the parser refuses would have run as something else."""
    assert run_by(SHELLS[0], f"{recorder} {word}", recorder) == Counter([(str(recorder), seen)])


# The list


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
def test_a_command_that_a_rule_names_passes(rules: list[str], command: str) -> None:
    assert listed(rules, command).verdict is Verdict.ALLOW


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
        (["ls *"], "./ls", "depends on the folder"),
        (["ls *"], "work/ls", "depends on the folder"),
        (["ls *"], "/home/ada/work/ls", "the agent can write"),
        (["/home/ada/work/* *"], "/home/ada/work/ls", "the agent can write"),
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
def test_a_command_that_no_rule_means_is_asked_about(rules: list[str], command: str, because: str) -> None:
    decision = listed(rules, command)

    assert decision.verdict is Verdict.ASK
    assert because in decision.because


@pytest.mark.spec("C62")
@pytest.mark.parametrize("name", sorted(RUNS_WHAT_IT_IS_TOLD - {".", "time"}))
def test_a_program_that_runs_others_never_passes_by_a_blanket_rule(name: str) -> None:
    for found in (name, f"{name}-3.11", f"{name}-12"):
        program = {found: Program(f"/usr/bin/{found}", f"/usr/bin/{found}")}

        assert listed([f"{found} *"], f"'{found}' a", programs=program).verdict is Verdict.ASK
        assert listed(["/usr/bin/* *"], f"'{found}' a", programs=program).verdict is Verdict.ASK


def test_a_link_to_an_interpreter_is_one() -> None:
    harmless = {"report": Program("/usr/local/bin/report", "/usr/bin/perl")}

    assert listed(["report *"], "report -e 1", programs=harmless).verdict is Verdict.ASK


@pytest.mark.parametrize(
    "text",
    ["", "* *", "li* x", "./ls", "a/b", "ls 'a b'", "ls $HOME", "ls; id", "ls | cat", "/opt/../bin/ls", "ls \x07"],
)
def test_a_rule_that_says_something_else_than_it_seems_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match=r"command\.rule-invalid"):
        rule(text)


def test_the_names_to_look_up_are_those_of_the_line_and_of_the_rules() -> None:
    named = programs_named(parse("ls | cat x"), [rule("git status"), rule("/opt/* *")])

    assert named == {"ls", "cat", "git"}


# Where it runs, and who is asked

OPEN = Gates(owner=True, foreground=True)
HIT = Decision(Verdict.ALLOW, "listed")
MISS = Decision(Verdict.ASK, "not listed")


@pytest.mark.spec("C60")
@given(
    st.builds(
        ExecPolicy,
        host=st.sampled_from(Where),
        security=st.sampled_from(Security),
        ask=st.sampled_from(Asking),
        sandbox_security=st.sampled_from(Security),
        sandbox_ask=st.sampled_from(Asking),
        elevated=st.sampled_from(Elevated),
    ),
    st.builds(
        Wish,
        host=st.none() | st.sampled_from(Where),
        security=st.none() | st.sampled_from(Security),
        ask=st.none() | st.sampled_from(Asking),
    ),
    st.sampled_from([HIT, MISS]),
    st.booleans(),
)
def test_what_a_call_asks_for_never_makes_anything_looser(
    policy: ExecPolicy, wish: Wish, on_list: Decision, sandbox_works: bool
) -> None:
    strict = [Verdict.DENY, Verdict.ASK, Verdict.ALLOW]
    plain = resolve(policy, Wish(host=wish.host and policy.host), Gates(), sandbox_works=sandbox_works)
    wished = resolve(policy, wish, Gates(), sandbox_works=sandbox_works)

    if wished.where is plain.where:
        assert strict.index(decide(wished, on_list).verdict) <= strict.index(decide(plain, on_list).verdict)
    else:
        assert (plain.where, wished.where) == (Where.HOST, Where.SANDBOX) or wished.refused


@pytest.mark.spec("C60")
def test_the_host_is_not_to_be_had_by_asking_for_it() -> None:
    resolved = resolve(ExecPolicy(), Wish(host=Where.HOST), OPEN, sandbox_works=True)

    assert decide(resolved, HIT).denied
    assert "elevated" in decide(resolved, HIT).because


@pytest.mark.spec("C60")
@pytest.mark.parametrize(
    ("gates", "level", "because"),
    [
        (OPEN, Elevated.OFF, "tools.exec.elevated"),
        (Gates(owner=False, foreground=True), Elevated.FULL, "owner"),
        (Gates(owner=True, foreground=False), Elevated.FULL, "nobody sits"),
        (Gates(owner=True, foreground=True, agent=False), Elevated.FULL, "this agent"),
    ],
)
def test_one_closed_gate_keeps_a_command_inside(gates: Gates, level: Elevated, because: str) -> None:
    resolved = resolve(ExecPolicy(elevated=level), Wish(elevated=True), gates, sandbox_works=True)

    assert resolved.where is Where.SANDBOX
    assert decide(resolved, HIT).denied and because in decide(resolved, HIT).because


@pytest.mark.spec("C60")
def test_through_open_gates_a_command_leaves_the_sandbox_as_it_is_set() -> None:
    def elevated(level: Elevated, ask: Asking | None = None) -> Decision:
        resolved = resolve(ExecPolicy(elevated=level), Wish(elevated=True, ask=ask), OPEN, sandbox_works=True)
        assert resolved.where is Where.HOST
        return decide(resolved, MISS)

    assert elevated(Elevated.ASK).verdict is Verdict.ASK
    bare = ExecPolicy(elevated=Elevated.ASK, security=Security.FULL, ask=Asking.OFF)
    assert decide(resolve(bare, Wish(elevated=True), OPEN, sandbox_works=True), MISS).verdict is Verdict.ASK
    assert elevated(Elevated.FULL).verdict is Verdict.ALLOW
    assert elevated(Elevated.FULL, ask=Asking.ALWAYS).verdict is Verdict.ASK


@pytest.mark.spec("C30", "C60")
@pytest.mark.parametrize(
    ("setting", "level", "where", "verdict"),
    [
        (Elevated.FULL, None, Where.SANDBOX, Verdict.ALLOW),  # nobody asked for it
        (Elevated.FULL, Elevation.OFF, Where.SANDBOX, Verdict.ALLOW),
        (Elevated.FULL, Elevation.ON, Where.HOST, Verdict.ASK),
        (Elevated.FULL, Elevation.ASK, Where.HOST, Verdict.ASK),
        (Elevated.FULL, Elevation.FULL, Where.HOST, Verdict.ALLOW),
        (Elevated.ASK, Elevation.FULL, Where.HOST, Verdict.ASK),  # no looser than the setting
        (Elevated.OFF, Elevation.FULL, Where.SANDBOX, Verdict.ALLOW),
    ],
)
def test_a_conversation_may_have_all_its_commands_leave_the_sandbox_and_none_looser_than_it_is_set(
    setting: Elevated, level: Elevation | None, where: Where, verdict: Verdict
) -> None:
    gates = replace(OPEN, level=level)
    resolved = resolve(ExecPolicy(elevated=setting), Wish(), gates, sandbox_works=True)

    assert (resolved.where, decide(resolved, MISS).verdict) == (where, verdict)
    inside = resolve(ExecPolicy(elevated=setting), Wish(host=Where.SANDBOX), gates, sandbox_works=True)
    assert inside.where is Where.SANDBOX, "a call may always ask for the stricter place"
    for closed in (replace(gates, owner=False), replace(gates, foreground=False), replace(gates, agent=False)):
        kept = resolve(ExecPolicy(elevated=setting), Wish(), closed, sandbox_works=True)
        assert kept.where is Where.SANDBOX and not kept.refused


@pytest.mark.spec("C30")
def test_a_conversation_that_has_it_turned_off_keeps_a_call_inside_that_asks_to_leave() -> None:
    gates = replace(OPEN, level=Elevation.OFF)
    resolved = resolve(ExecPolicy(elevated=Elevated.FULL), Wish(elevated=True), gates, sandbox_works=True)

    assert decide(resolved, HIT).denied and "/elevated" in decide(resolved, HIT).because


@pytest.mark.spec("C60")
def test_without_a_sandbox_that_works_a_person_is_asked() -> None:
    resolved = resolve(ExecPolicy(), Wish(), OPEN, sandbox_works=False)

    assert resolved.where is Where.HOST
    assert decide(resolved, HIT).verdict is Verdict.ASK
    assert decide(resolve(ExecPolicy(), Wish(), OPEN, sandbox_works=True), MISS).allowed


@pytest.mark.spec("C60")
def test_a_list_without_asking_denies_what_it_does_not_name() -> None:
    resolved = resolve(ExecPolicy(host=Where.HOST, ask=Asking.OFF), Wish(), OPEN, sandbox_works=True)

    assert decide(resolved, HIT).allowed
    assert decide(resolved, MISS).denied
    assert re.search("not listed", decide(resolved, MISS).because)
