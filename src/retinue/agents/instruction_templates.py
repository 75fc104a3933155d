"""The owner's templates for system prompts: `RETINUE_HOME/instructions/instructions.md.j2` and the files it includes.

The values that fill a template are inserted unchanged and never parsed as templates. Templates for
one agent are in `RETINUE_HOME/instructions/NAME/` and override the shared ones. They are not in the
agent directory, because the agent can write there. A template is checked before it is used. If it
is invalid, the owner is notified. The last valid template, which is kept in the store, then stays
in use.
"""

from __future__ import annotations

import hashlib
import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Struct

from retinue.agents.errors import InvalidTemplate
from retinue.agents.instructions import (
    SECTION_MODES,
    InstructionFile,
    InstructionFileState,
    InstructionSection,
    Mode,
    ModelAlias,
    PromptAgent,
    PromptContext,
    PromptInstance,
    PromptMemory,
    PromptPanel,
    PromptRuntime,
    PromptTool,
    PromptWorkspace,
    RenderedSection,
    SubagentTask,
    VisibleAgent,
    render_sections,
)
from retinue.domain.renamed_names import TEMPLATE_SECTIONS, TEMPLATE_VARIABLES

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment

TEMPLATES_FOLDER = "instructions"
ENTRY_FILE = "instructions.md.j2"
BUILT_IN_FILE = "built-in.md.j2"  # the default prompt, for templates that extend it
TEMPLATE_SUFFIX = ".j2"
FILES_MAX = 50  # per folder
FILE_BYTES_MAX = 65_536
FILES_BYTES_MAX = 262_144  # all files of one template, which are kept in the store
PROMPT_CHARS_MAX = 400_000  # length of a rendered prompt
ENVIRONMENTS_MAX = 16

BUILT_IN_TEXT = """\
{% for text in sections.values() %}
{{ text }}
{% if not loop.last %}

{% endif %}
{% endfor %}
"""


@dataclass(frozen=True, slots=True)
class InstructionTemplate:
    """The files of one template, by name. They are kept in memory, because the files on disk may change at any time."""

    files: Mapping[str, str] = field(hash=False)

    @property
    def hash(self) -> str:
        return hashlib.sha256(msgspec.json.encode(sorted(self.files.items()))).hexdigest()

    def check(self, sections: Sequence[InstructionSection]) -> None:
        """Raise `InvalidTemplate` if the template has a syntax error, uses an unknown name, or
        fails with a sample context.
        """
        _check_names(self)
        for situation in SAMPLE_CONTEXTS:
            self.render(situation, render_sections(situation, sections))

    def render(self, context: PromptContext, parts: Sequence[RenderedSection]) -> str:
        return self.render_with_sections(context, parts)[0]

    def render_with_sections(
        self, context: PromptContext, parts: Sequence[RenderedSection]
    ) -> tuple[str, tuple[RenderedSection, ...]]:
        """Return the rendered prompt, and the sections that the template used."""
        used = _TrackedSections({part.name: part.text for part in parts})
        try:
            template = _environment(tuple(sorted(self.files.items()))).get_template(ENTRY_FILE)
            text = _join_within_limit(template.generate(**_variable_values(context), sections=used))
        except Exception as error:  # any error in rendering is an error of the template
            raise _to_invalid_template(error) from error
        return text.strip(), tuple(part for part in parts if part.name in used.used_names)


class _TrackedSections(dict[str, str]):
    """The sections by name, as a template gets them. Records which sections the template used.

    A known section without text is an empty string. An unknown name raises `KeyError`.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        super().__init__(texts)
        self.used_names: set[str] = set()

    def __getitem__(self, name: str) -> str:
        name = TEMPLATE_SECTIONS.get(name, name)
        self.used_names.add(name)
        return super().__getitem__(name)

    def __missing__(self, name: str) -> str:
        if name not in SECTION_MODES:
            raise KeyError(name)
        return ""

    def values(self) -> Any:
        self.used_names.update(self)
        return super().values()

    def items(self) -> Any:
        self.used_names.update(self)
        return super().items()


def variable_names() -> tuple[str, ...]:
    return (*PromptContext.__struct_fields__, "sections")


def _variable_values(context: PromptContext) -> dict[str, Any]:
    values = {name: getattr(context, name) for name in PromptContext.__struct_fields__}
    return values | {old: values[new] for old, new in _RENAMED_VARIABLES.items()}


_RENAMED_VARIABLES = {old: new for old, new in TEMPLATE_VARIABLES.items() if "." not in old}
_RENAMED_FIELDS = {
    old.rpartition(".")[2]: new.rpartition(".")[2] for old, new in TEMPLATE_VARIABLES.items() if "." in old
}
"""Old field names. No variable has a field with one of these names now, so the type of the object does not matter."""


@lru_cache(ENVIRONMENTS_MAX)
def _environment(files: tuple[tuple[str, str], ...]) -> SandboxedEnvironment:
    """Return the Jinja environment. Jinja is imported on first use, because most instances have no template."""
    from jinja2 import FunctionLoader, StrictUndefined, TemplateNotFound
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class TemplateEnvironment(ImmutableSandboxedEnvironment):
        """A Jinja environment in which templates may still use the old names of fields."""

        def getattr(self, obj: Any, attribute: str) -> Any:
            return super().getattr(obj, _current_field(obj, attribute))

        def getitem(self, obj: Any, argument: Any) -> Any:
            return super().getitem(obj, _current_field(obj, argument))

    known = {BUILT_IN_FILE: BUILT_IN_TEXT, **dict(files)}

    def load(name: str) -> tuple[str, str, None]:
        if name not in known:
            raise TemplateNotFound(name)
        return known[name], name, None

    return TemplateEnvironment(
        loader=FunctionLoader(load), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, auto_reload=False
    )


def _current_field(obj: object, name: Any) -> Any:
    """Return the current name of a field, given its current or outdated name."""
    return _RENAMED_FIELDS.get(name, name) if isinstance(obj, Struct) and isinstance(name, str) else name


def _join_within_limit(pieces: Any) -> str:
    made: list[str] = []
    chars = 0
    for piece in pieces:
        chars += len(piece)
        if chars > PROMPT_CHARS_MAX:
            raise OverflowError(f"the result has more than {PROMPT_CHARS_MAX:,} characters, which is the limit")
        made.append(piece)
    return "".join(made)


def _check_names(template: InstructionTemplate) -> None:
    """Check all names in a template, even in branches that no sample context reaches."""
    from jinja2 import TemplateSyntaxError, meta, nodes

    environment = _environment(tuple(sorted(template.files.items())))
    for name, source in template.files.items():
        try:
            tree = environment.parse(source, name, name)
        except TemplateSyntaxError as error:
            raise _to_invalid_template(error) from error
        unknown = meta.find_undeclared_variables(tree) - {*variable_names(), *_RENAMED_VARIABLES}
        for node in tree.find_all(nodes.Name):
            if node.name in unknown:
                raise _invalid_template(name, node.lineno, f"unknown variable '{node.name}'")
        for include in meta.find_referenced_templates(tree):
            if include is not None and include not in (BUILT_IN_FILE, *template.files):
                raise _invalid_template(name, None, f"the file '{include}' does not exist")


class RenamedName(NamedTuple):
    """An outdated name in a template, with the file and line of its first use."""

    file: str
    line: int
    old: str
    new: str


def find_renamed_names(template: InstructionTemplate) -> list[RenamedName]:
    """Return the outdated names of variables, fields and sections in a template.

    Each name is listed once per file. Files with a syntax error are skipped.
    """
    from jinja2 import TemplateSyntaxError, meta, nodes

    environment = _environment(tuple(sorted(template.files.items())))
    found: dict[tuple[str, str], RenamedName] = {}
    for file, source in sorted(template.files.items()):
        try:
            tree = environment.parse(source, file, file)
        except TemplateSyntaxError:
            continue
        undeclared = meta.find_undeclared_variables(tree)
        for node in tree.find_all((nodes.Name, nodes.Getattr, nodes.Getitem)):
            match node:
                case nodes.Name(name=old) if old in _RENAMED_VARIABLES and old in undeclared:
                    new = _RENAMED_VARIABLES[old]
                case nodes.Getattr(node=nodes.Name(name="sections"), attr=old) if old in TEMPLATE_SECTIONS:
                    old, new = f"sections.{old}", f"sections.{TEMPLATE_SECTIONS[old]}"
                case nodes.Getitem(node=nodes.Name(name="sections"), arg=nodes.Const(value=old)) if (
                    old in TEMPLATE_SECTIONS
                ):
                    old, new = f'sections["{old}"]', f"sections.{TEMPLATE_SECTIONS[old]}"
                case nodes.Getattr(attr=old) if old in _RENAMED_FIELDS:
                    old, new = f".{old}", f".{_RENAMED_FIELDS[old]}"
                case _:
                    continue
            found.setdefault((file, old), RenamedName(file, node.lineno, old, new))
    return list(found.values())


def _to_invalid_template(error: BaseException) -> InvalidTemplate:
    if isinstance(error, InvalidTemplate):
        return error
    from jinja2 import TemplateSyntaxError

    line: int | None = None
    name = ENTRY_FILE
    if isinstance(error, TemplateSyntaxError):
        line, name = error.lineno, error.name or ENTRY_FILE
    else:
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(TEMPLATE_SUFFIX)
        ]
        line, name = (frames[-1].lineno, frames[-1].filename) if frames else (None, ENTRY_FILE)
    message = " ".join(str(error).split())[:300] or type(error).__name__
    return _invalid_template(name, line, message)


def _invalid_template(name: str, line: int | None, because: str) -> InvalidTemplate:
    where = f"line {line} of {name}" if line is not None else name
    return InvalidTemplate(where, because=because)


# --- on disk ---

FileFingerprints = tuple[tuple[str, int, int, int], ...]
"""Path, modification time, size and inode of each file. Equal fingerprints mean that no file has changed."""


def template_fingerprints(folder: str, agent: str) -> FileFingerprints:
    """Return the fingerprint of each template file of an agent, to detect changes without reading the files.

    This must be fast, because it is called in every run.
    """
    return (
        (*_folder_fingerprints(folder), *_folder_fingerprints(os.path.join(folder, agent)))
        if os.path.exists(folder)
        else ()
    )


def _folder_fingerprints(folder: str) -> FileFingerprints:
    try:
        with os.scandir(folder) as entries:
            statuses = [(e.path, e.stat()) for e in entries if e.name.endswith(TEMPLATE_SUFFIX) and e.is_file()]
    except OSError:
        return ()
    return tuple(sorted((path, status.st_mtime_ns, status.st_size, status.st_ino) for path, status in statuses))


def load_template(folder: Path, agent: str) -> InstructionTemplate | None:
    """Read an agent's template from disk. The agent's files override the shared ones.

    Returns None if there is no entry file.
    """
    files = {**_read_folder(folder), **_read_folder(folder / agent)}
    if sum(len(text.encode()) for text in files.values()) > FILES_BYTES_MAX:
        raise _invalid_template(str(folder), None, f"the limit for all its files together is {FILES_BYTES_MAX:,} bytes")
    return InstructionTemplate(files) if ENTRY_FILE in files else None


def template_scope_of(fingerprints: FileFingerprints, folder: str, agent: str) -> str:
    """Return the agent's name if the agent has its own template, or an empty string for the shared template."""
    own = os.path.join(folder, agent) + os.sep
    return agent if any(path.startswith(own) for path, *_ in fingerprints) else ""


def _read_folder(folder: Path) -> dict[str, str]:
    paths = sorted(folder.glob(f"*{TEMPLATE_SUFFIX}")) if folder.is_dir() else []
    if len(paths) > FILES_MAX:
        raise _invalid_template(str(folder), None, f"the limit is {FILES_MAX} files")
    files: dict[str, str] = {}
    for path in paths:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise _invalid_template(path.name, None, f"the limit is {FILE_BYTES_MAX:,} bytes")
        try:
            files[path.name] = data.decode()
        except UnicodeDecodeError as error:
            raise _invalid_template(path.name, None, f"byte {error.start} is not valid UTF-8") from error
    return files


# --- sample contexts for checks ---

_SAMPLE_FILE = InstructionFile(name="SOUL.md", path="/home/ada/SOUL.md", text="Be kind.")
_FULL_SAMPLE = PromptContext(
    agent=PromptAgent(name="ada", description="Keeps the lists.", instructions="Be brief.", level="standard"),
    instance=PromptInstance(version="1", owner="owner", zone="UTC", documentation="/docs", commands=True),
    workspace=PromptWorkspace(path="/work", agent_directory="/home/ada", read_only=True, sandbox="bubblewrap"),
    runtime=PromptRuntime(
        host="host",
        os="Linux",
        arch="x86_64",
        interpreter="python=3",
        model="m",
        channel="web",
        reasoning="on",
        needs_reasoning_tags=True,
    ),
    tools=(
        PromptTool("read", "Read a file."),
        PromptTool("exec", "Run a command."),
        PromptTool("agents_message", "Ask."),
    ),
    skills="<available_skills></available_skills>",
    aliases=(ModelAlias("opus", "anthropic/opus"),),
    agents=(VisibleAgent("grace", "Grace", "Finds things."),),
    panels=(PromptPanel(id="p1", type="notes", item_type="note", item_id="n1"),),
    plugins=("A plugin was here.",),
    extra="Be quick.",
    files=(_SAMPLE_FILE,),
    context_files=(_SAMPLE_FILE,),
    memory=PromptMemory(longterm=_SAMPLE_FILE, days=(_SAMPLE_FILE,)),
)
_MINIMAL_SAMPLE = PromptContext(
    agent=PromptAgent(name="ada"),
    memory=PromptMemory(longterm=InstructionFile(name="M", state=InstructionFileState.MISSING)),
)
_SUBAGENT_SAMPLE = msgspec.structs.replace(
    _FULL_SAMPLE,
    subagent_task=SubagentTask(
        task="Find it.", label="find", requester="ada", requester_session="s", requester_channel="web", session="t"
    ),
)
SAMPLE_CONTEXTS: tuple[PromptContext, ...] = tuple(
    msgspec.structs.replace(situation, mode=mode)
    for mode in Mode
    for situation in (_FULL_SAMPLE, _MINIMAL_SAMPLE, _SUBAGENT_SAMPLE)
)
