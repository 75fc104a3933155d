"""The errors reference is generated from the error classes. Facts appear in it as names in capitals."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from retinue.operations.error_reference import ErrorText, find_errors, render_errors_page
from retinue.operations.generate_reference import SOURCE

ERRORS = '''
class RetinueError(Exception):
    """An error that can be explained to a person."""

    code = "server.error"

    def __init__(self, sentence, *, because="", try_this="", code=None): ...


class NotFound(RetinueError):
    """It does not exist."""

    code = "thing.not_found"
'''


def errors_in(folder: Path, **modules: str) -> list[ErrorText]:
    """Write a package `retinue` with these modules, and return its errors."""
    package = folder / "retinue"
    (package / "domain").mkdir(parents=True)
    (package / "domain" / "errors.py").write_text(ERRORS)
    for name, source in modules.items():
        (package / f"{name}.py").write_text("from retinue.domain.errors import NotFound\n" + source)
    return [error for error in find_errors(package) if error.code not in ("server.error", "thing.not_found")]


def test_the_error_reference_shows_the_arguments_of_an_error_as_names_in_capitals(tmp_path: Path) -> None:
    [error] = errors_in(
        tmp_path,
        agents="""
class AgentNotFound(NotFound):
    '''No agent has this name. `known` are the names that exist.'''

    code = "agent.not_found"

    def __init__(self, name, *, known=(), bytes_max=1):
        shown = shorten(name)
        super().__init__(
            f"no agent named '{shown[:80]}'",
            because=f"the names are {', '.join(known)}; the limit is {bytes_max:,} bytes" if known else "",
            try_this=f"retinue agent register {name.strip()}",
        )
""",
    )
    assert error == ErrorText(
        code="agent.not_found",
        source="retinue.agents.AgentNotFound",
        description="No agent has this name.",
        sentence="no agent named 'NAME'",
        because="the names are KNOWN; the limit is BYTES_MAX bytes",
        try_this="retinue agent register NAME",
    )
    assert render_errors_page([error]).endswith(
        "## `agent.not_found`\n\nNo agent has this name.\n\n- no agent named 'NAME'  \n"
        "  because: the names are KNOWN; the limit is BYTES_MAX bytes  \n  try: retinue agent register NAME\n"
    )


def test_the_error_reference_shows_each_alternative_text_of_an_error(tmp_path: Path) -> None:
    [error] = errors_in(
        tmp_path,
        sessions="""
class SessionTaken(NotFound):
    '''Taken.'''

    code = "session.taken"

    def __init__(self, id_, *, days=None, because=""):
        super().__init__(
            f"the id {id_} is taken",
            because="it exists" if days is None else f"it was deleted {days} days ago",
            try_this=because or "choose another",
        )
""",
    )
    assert error.because == "it exists\nit was deleted DAYS days ago"
    assert error.try_this == "(depends on the case)\nchoose another"


def test_the_error_reference_shows_the_text_of_a_constant_and_not_its_name(tmp_path: Path) -> None:
    [error] = errors_in(
        tmp_path,
        agents="""
_TELL_OWNER = "ask the owner"

class AgentNotFound(NotFound):
    code = "agent.not_found"

    def __init__(self, name):
        super().__init__(f"no agent named '{name}'", try_this=f"create it, or {_TELL_OWNER}")
""",
    )
    assert error.try_this == "create it, or ask the owner"


def test_the_error_reference_keeps_the_codes_of_error_classes_with_the_same_name(tmp_path: Path) -> None:
    source = """
class Missing(NotFound):
    '''{0} is missing.'''

    code = "{0}.missing"

def fail():
    raise Missing("no {0} here", because="none was made")
"""
    found = errors_in(tmp_path, cup=source.format("cup"), pot=source.format("pot"))
    assert {(error.code, error.source, error.sentence) for error in found} == {
        ("cup.missing", "retinue.cup.Missing", ""),
        ("pot.missing", "retinue.pot.Missing", ""),
        ("cup.missing", "retinue.cup.Missing", "no cup here"),
        ("pot.missing", "retinue.pot.Missing", "no pot here"),
    }


def test_the_error_reference_lists_a_raised_error_only_if_it_passes_its_own_code(tmp_path: Path) -> None:
    found = errors_in(
        tmp_path,
        tools="""
class ToolNotFound(NotFound):
    '''No tool has this name.'''

    code = "tool.not_found"

    def __init__(self, name, *, because=""):
        super().__init__(f"no tool named '{name}'", because=because)

def fail(name):
    if name:
        raise ToolNotFound(name, because="it is hidden")
    raise NotFound(f"no {name} at all", because="there is none", code="tool.none")
""",
    )
    assert [(error.code, error.sentence, error.because) for error in found] == [
        ("tool.not_found", "no tool named 'NAME'", "(depends on the case)"),
        ("tool.none", "no NAME at all", "there is none"),
    ]


def test_the_error_reference_finds_an_error_base_class_through_a_module_that_reexports_it(tmp_path: Path) -> None:
    found = errors_in(
        tmp_path,
        exports="",
        skills="""
from retinue import exports

class SkillBroken(exports.NotFound):
    '''A skill cannot be read.'''

    code = "skill.broken"
""",
        enums="""
class Kind(str):
    '''No error.'''

    code = "kind.one"
""",
    )
    assert [(error.code, error.description) for error in found] == [("skill.broken", "A skill cannot be read.")]


def test_every_error_class_has_a_unique_code() -> None:
    codes = Counter(code for code, _ in {(each.code, each.source) for each in find_errors(SOURCE) if each.description})
    assert {code: count for code, count in codes.items() if count > 1} == {}
