"""The owner's templates for system prompts: `RETINUE_HOME/instructions/instructions.md.j2` and the
files it includes.

The values that fill a template are data: they are inserted as they are and never parsed as
templates. The templates of one agent are in `RETINUE_HOME/instructions/NAME/` and override the
shared ones. They are not in the agent directory, because the agent can write there. A template is
checked before it is used. An invalid one changes nothing: the last valid one is kept in the store
and stays in use, and the owner is notified.
"""

from __future__ import annotations

import hashlib
import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from retinue.agents.instructions import (
    PLACES,
    Alias,
    Colleague,
    Errand,
    FileState,
    FileTold,
    Memory,
    Mode,
    PanelTold,
    Part,
    Runtime,
    Section,
    Situation,
    TheAgent,
    TheHouse,
    ToolTold,
    Where,
    told,
)
from retinue.domain.errors import Invalid

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment

FOLDER = "instructions"
ENTRY = "instructions.md.j2"
BUILT_IN = "built-in.md.j2"  # the default prompt, for templates that extend it
SUFFIX = ".j2"
FILES_MAX = 50  # per folder
FILE_BYTES_MAX = 65_536
FILES_BYTES_MAX = 262_144  # all files of one template, which are kept in the store
TEXT_CHARS_MAX = 400_000  # of a rendered prompt
ENVIRONMENTS_MAX = 16

BUILT_IN_TEXT = """\
{% for text in sections.values() %}
{{ text }}
{% if not loop.last %}

{% endif %}
{% endfor %}
"""


class TemplateBroken(Invalid):
    """A template is invalid and is not used."""

    code = "instructions.template-broken"


@dataclass(frozen=True, slots=True)
class Template:
    """All files of a template by name, in memory: the files on disk may change while it is in use."""

    files: Mapping[str, str] = field(hash=False)

    @property
    def hash(self) -> str:
        return hashlib.sha256(msgspec.json.encode(sorted(self.files.items()))).hexdigest()

    def check(self, sections: Sequence[Section]) -> None:
        """Raise `InvalidTemplate` if the template has a syntax error, uses an unknown name, or
        fails with a sample context.
        """
        _check_names(self)
        for situation in SAMPLES:
            self.render(situation, told(situation, sections))

    def render(self, situation: Situation, parts: Sequence[Part]) -> str:
        return self.rendered(situation, parts)[0]

    def rendered(self, situation: Situation, parts: Sequence[Part]) -> tuple[str, tuple[Part, ...]]:
        """Return the text, and the sections that it contains."""
        used = _Used({part.name: part.text for part in parts})
        try:
            template = _environment(tuple(sorted(self.files.items()))).get_template(ENTRY)
            text = _bounded(template.generate(**_variables(situation), sections=used))
        except Exception as error:  # any error in rendering is an error of the template
            raise _broken(error) from error
        return text.strip(), tuple(part for part in parts if part.name in used.seen)


class _Used(dict[str, str]):
    """Sections by name, with a record of which were used.

    A known section without a text here is an empty string; an unknown name raises `KeyError`.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        super().__init__(texts)
        self.seen: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.seen.add(name)
        return super().__getitem__(name)

    def __missing__(self, name: str) -> str:
        if name not in PLACES:
            raise KeyError(name)
        return ""

    def values(self) -> Any:
        self.seen.update(self)
        return super().values()

    def items(self) -> Any:
        self.seen.update(self)
        return super().items()


def variables() -> tuple[str, ...]:
    return (*Situation.__struct_fields__, "sections")


def _variables(situation: Situation) -> dict[str, Any]:
    return {name: getattr(situation, name) for name in Situation.__struct_fields__}


@lru_cache(ENVIRONMENTS_MAX)
def _environment(files: tuple[tuple[str, str], ...]) -> SandboxedEnvironment:
    """Import Jinja on first use: most instances have no template."""
    from jinja2 import FunctionLoader, StrictUndefined, TemplateNotFound
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    known = {BUILT_IN: BUILT_IN_TEXT, **dict(files)}

    def load(name: str) -> tuple[str, str, None]:
        if name not in known:
            raise TemplateNotFound(name)
        return known[name], name, None

    return ImmutableSandboxedEnvironment(
        loader=FunctionLoader(load), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, auto_reload=False
    )


def _bounded(pieces: Any) -> str:
    made: list[str] = []
    chars = 0
    for piece in pieces:
        chars += len(piece)
        if chars > TEXT_CHARS_MAX:
            raise OverflowError(f"it comes to more than {TEXT_CHARS_MAX:,} characters")
        made.append(piece)
    return "".join(made)


def _check_names(template: Template) -> None:
    """Check all names, also in branches that no sample reaches."""
    from jinja2 import TemplateSyntaxError, meta, nodes

    environment = _environment(tuple(sorted(template.files.items())))
    for name, source in template.files.items():
        try:
            tree = environment.parse(source, name, name)
        except TemplateSyntaxError as error:
            raise _broken(error) from error
        unknown = meta.find_undeclared_variables(tree) - set(variables())
        for node in tree.find_all(nodes.Name):
            if node.name in unknown:
                raise _refused(name, node.lineno, f"there is no variable '{node.name}'")
        for include in meta.find_referenced_templates(tree):
            if include is not None and include not in (BUILT_IN, *template.files):
                raise _refused(name, None, f"there is no file '{include}'")


def _broken(error: BaseException) -> TemplateBroken:
    if isinstance(error, TemplateBroken):
        return error
    from jinja2 import TemplateSyntaxError

    line: int | None = None
    name = ENTRY
    if isinstance(error, TemplateSyntaxError):
        line, name = error.lineno, error.name or ENTRY
    else:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(SUFFIX)]
        line, name = (frames[-1].lineno, frames[-1].filename) if frames else (None, ENTRY)
    words = " ".join(str(error).split())[:300] or type(error).__name__
    return _refused(name, line, words)


def _refused(name: str, line: int | None, because: str) -> TemplateBroken:
    where = f"line {line} of {name}" if line is not None else name
    return TemplateBroken(
        f"this template cannot be used: {where}",
        because=because,
        try_this="what may be named is listed in docs/reference/instructions.md; `retinue agent prompt` tries one",
    )


# --- on disk ---

Marks = tuple[tuple[str, int, int, int], ...]
"""Path, moment of the last change, size and number of each file: the same for the same files."""


def marks(folder: str, agent: str) -> Marks:
    """Return the fingerprints of an agent's templates without reading them. Cheap, because it is
    called in every run.
    """
    return (*_marks(folder), *_marks(os.path.join(folder, agent))) if os.path.exists(folder) else ()


def _marks(folder: str) -> Marks:
    try:
        with os.scandir(folder) as entries:
            statuses = [(e.path, e.stat()) for e in entries if e.name.endswith(SUFFIX) and e.is_file()]
    except OSError:
        return ()
    return tuple(sorted((path, status.st_mtime_ns, status.st_size, status.st_ino) for path, status in statuses))


def load(folder: Path, agent: str) -> Template | None:
    """Return an agent's template from disk, merged over the shared files; None if there is no entry file."""
    files = {**_read(folder), **_read(folder / agent)}
    if sum(len(text.encode()) for text in files.values()) > FILES_BYTES_MAX:
        raise _refused(str(folder), None, f"its files have more than {FILES_BYTES_MAX:,} bytes together")
    return Template(files) if ENTRY in files else None


def scope_of(found: Marks, folder: str, agent: str) -> str:
    """Return the agent's name if it has its own template, or an empty string for the shared one."""
    own = os.path.join(folder, agent) + os.sep
    return agent if any(path.startswith(own) for path, *_ in found) else ""


def _read(folder: Path) -> dict[str, str]:
    paths = sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []
    if len(paths) > FILES_MAX:
        raise _refused(str(folder), None, f"it has more than {FILES_MAX} files")
    files: dict[str, str] = {}
    for path in paths:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise _refused(path.name, None, f"it has more than {FILE_BYTES_MAX:,} bytes")
        try:
            files[path.name] = data.decode()
        except UnicodeDecodeError as error:
            raise _refused(path.name, None, f"it is not UTF-8 at byte {error.start}") from error
    return files


# --- sample contexts for checks ---

_FILE = FileTold(name="SOUL.md", path="/home/ada/SOUL.md", text="Be kind.")
_RICH = Situation(
    agent=TheAgent(name="ada", description="Keeps the lists.", instructions="Be brief.", level="standard"),
    house=TheHouse(version="1", owner="owner", zone="UTC", documentation="/docs", commands=True),
    where=Where(workspace="/work", home="/home/ada", read_only=True, sandbox="bubblewrap"),
    runtime=Runtime(
        host="host",
        os="Linux",
        arch="x86_64",
        interpreter="python=3",
        model="m",
        channel="web",
        reasoning="on",
        tags=True,
    ),
    tools=(ToolTold("read", "Read a file."), ToolTold("exec", "Run a command."), ToolTold("agents_message", "Ask.")),
    skills="<available_skills></available_skills>",
    aliases=(Alias("opus", "anthropic/opus"),),
    agents=(Colleague("grace", "Grace", "Finds things."),),
    panels=(PanelTold(id="p1", type="notes", item_type="note", item_id="n1"),),
    plugins=("A plug-in was here.",),
    extra="Be quick.",
    files=(_FILE,),
    context_files=(_FILE,),
    memory=Memory(longterm=_FILE, days=(_FILE,)),
)
_BARE = Situation(agent=TheAgent(name="ada"), memory=Memory(longterm=FileTold(name="M", state=FileState.MISSING)))
_SENT = msgspec.structs.replace(
    _RICH,
    errand=Errand(
        task="Find it.", label="find", requester="ada", requester_session="s", requester_channel="web", session="t"
    ),
)
SAMPLES: tuple[Situation, ...] = tuple(
    msgspec.structs.replace(situation, mode=mode) for mode in Mode for situation in (_RICH, _BARE, _SENT)
)
