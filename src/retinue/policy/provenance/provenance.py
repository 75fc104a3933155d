"""Decides whether a call may be made after untrusted content was read: each argument must be
explained, or a person is asked.

Once untrusted content is in a context, its influence on the model's output cannot be determined. So
values are not tracked through the model. A value passes only if it can be obtained without that
content: from the owner's words, from a typed value of a trusted result, or by a standing rule. It
must match as a whole value of the same type. Everything else asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any, cast

from msgspec import Struct, field

from retinue.config.provenance import Kind, Sort, Standing, sorts_of
from retinue.domain.decision import Decision, Verdict
from retinue.domain.record import Mark, Note, Record, Reply, Summary, UserTurn
from retinue.domain.tool import Call, Effect, ToolResult, ToolSpec, call_hash
from retinue.domain.trust import Trust
from retinue.policy.provenance.provenance_match import Known, explained
from retinue.policy.provenance.provenance_rules import OriginPolicy
from retinue.policy.provenance.provenance_text import kind_by_form, plain, said
from retinue.policy.provenance.provenance_values import entries_of
from retinue.text.untrusted_wrapper import unwrap

EFFECTS = frozenset({Effect.WRITES, Effect.SENDS_OUT, Effect.SPENDS, Effect.RUNS_CODE})
ARGUMENTS_MAX = 200  # values per call, including nested ones
DEPTH_MAX = 8
SHOWN_CHARS_MAX = 80


class Source(Struct, frozen=True, kw_only=True):
    """One item of the context: a user's text or the result of a call. Other items carry only their trust."""

    trust: Trust
    words: str = ""
    tool: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    output: str = ""


class Context(Struct, frozen=True, kw_only=True):
    """What was read and done before a call. `calls_done` are the calls since the owner's last message."""

    sources: tuple[Source, ...] = ()
    done: tuple[Call, ...] = ()

    @property
    def tainted(self) -> bool:
        return any(source.trust is Trust.UNTRUSTED for source in self.sources)


class Finding(Struct, frozen=True):
    """The check of one value of a call: what explains it, or why nothing does."""

    argument: str
    value: str
    by: str = ""
    why: str = ""

    @property
    def explained(self) -> bool:
        return bool(self.by)


class Judgement(Struct, frozen=True, kw_only=True):
    decision: Decision
    findings: tuple[Finding, ...] = ()


def context_of(records: Iterable[Record]) -> Context:
    """Build the context from its records.

    Summaries and notes explain nothing: they are not the owner's words.

    The caller may pass the owner's messages of the whole session, including those that a summary
    has replaced.
    """
    sources: list[Source] = []
    calls: dict[str, Call] = {}
    done: list[Call] = []
    for record in records:
        match record.body:
            case UserTurn(text=text, attachments=attachments):
                sources.append(Source(trust=record.trust, words=said(text)))
                sources.extend(Source(trust=Trust.UNTRUSTED) for _ in attachments if record.trust is not Trust.OWNER)
                if record.trust is Trust.OWNER:
                    done.clear()
            case Reply(calls=asked):
                calls.update((call.id, call) for call in asked)
            case ToolResult() as result:
                call = calls.get(result.call, Call(id=result.call, tool=result.tool))
                if not result.failed:
                    done.append(call)
                sources.append(_of_result(record, result, call))
            case Summary() | Note() | Mark():
                sources.append(Source(trust=record.trust))
    return Context(sources=tuple(sources), done=tuple(done))


def _of_result(record: Record, result: ToolResult, call: Call) -> Source:
    untrusted = Trust.UNTRUSTED in (record.trust, result.trust)
    trust = Trust.UNTRUSTED if untrusted else result.trust
    if result.failed or call.tool != result.tool:
        return Source(trust=trust)
    return Source(trust=trust, tool=result.tool, arguments=call.arguments, output=unwrap(result.output))


def is_effectful(spec: ToolSpec) -> bool:
    """Whether a call can change something or reveal something. A request to the outside reveals what was asked."""
    if spec.effects & EFFECTS:
        return True
    return Effect.READS_UNTRUSTED in spec.effects and Effect.READS_PRIVATE not in spec.effects


def decide(
    policy: OriginPolicy,
    spec: ToolSpec,
    call: Call,
    context: Context,
    *,
    today: date | None = None,
    known: Known | None = None,
) -> Judgement:
    """Decide whether a call is allowed or needs approval, with a finding for each argument.

    Never denies. Pure.

    `known` is the result of `collect_known_values`, if the caller has it already.
    """
    if not is_effectful(spec):
        return Judgement(decision=Decision(Verdict.ALLOW, "it only reads what is ours"))
    if not context.tainted:
        return Judgement(decision=Decision(Verdict.ALLOW, "nothing untrusted was read"))
    if known is None:
        known = known_from(policy, context, today=today)
    findings = tuple(_findings(policy, spec, call, context, known))
    open_ones = [finding for finding in findings if not finding.explained]
    if not open_ones:
        return Judgement(decision=Decision(Verdict.ALLOW, "each argument is explained"), findings=findings)
    told = "; ".join(f"{finding.argument} = {finding.value!r} ({finding.why})" for finding in open_ones[:5])
    because = f"untrusted words were read, and nothing that the owner said explains {told}"
    return Judgement(decision=Decision(Verdict.ASK, because), findings=findings)


def known_from(policy: OriginPolicy, context: Context, *, today: date | None = None) -> Known:
    words = [source.words for source in context.sources if source.words and source.trust in policy.speakers]
    entries = [
        entry
        for source in context.sources
        if source.tool
        for entry in entries_of(policy, source.tool, source.arguments, source.output)
    ]
    return Known.of(policy, words, entries, today=today)


def _findings(policy: OriginPolicy, spec: ToolSpec, call: Call, context: Context, known: Known) -> Iterator[Finding]:
    yield _act(policy, spec, known)
    if any(call_hash(call) == call_hash(before) for before in context.done):
        yield Finding("(again)", spec.name, why="the same was done already since the owner last spoke")
    properties = cast("Mapping[str, Any]", spec.parameters.get("properties") or {})
    required = cast("Sequence[str]", spec.parameters.get("required") or ())
    given = {
        name: value
        for name, value in call.arguments.items()
        if name in required or not _is_left_out(properties, name, value)
    }
    declared = frozenset(_declared(spec.parameters))
    count = 0
    for name, value in given.items():
        for path, each in _leaves(name, value, declared, 0):
            count += 1
            if count > ARGUMENTS_MAX:
                yield Finding(path, "", why=f"more than {ARGUMENTS_MAX} values")
                return
            yield _finding(policy, spec, properties, given, name, path, each, known)


def _act(policy: OriginPolicy, spec: ToolSpec, known: Known) -> Finding:
    """Check the tool itself, which is a value too: that the owner named a file does not mean it may be deleted."""
    rule = policy.act(spec.name)
    if rule is None:
        words = [word for word in re.split(r"[^a-zA-Z]+", plain(spec.name)) if word]
        if words and all(known.says_word(word) for word in words):
            return Finding("(tool)", spec.name, by="the owner asked for it by its name")
        return Finding("(tool)", spec.name, why="the owner did not ask for it")
    if "*" in rule.words:
        return Finding("(tool)", spec.name, by="a standing rule")
    for word in rule.words:
        if known.says_word(word):
            return Finding("(tool)", spec.name, by=f"the owner said '{word}'")
    return Finding("(tool)", spec.name, why="the owner did not ask for it")


def _is_left_out(properties: Mapping[str, Any], name: str, value: Any) -> bool:
    """Whether a value is empty, or equal to the default."""
    if value is None or value == [] or value == {}:
        return True
    schema = properties.get(name)
    if not isinstance(schema, dict) or "default" not in schema:
        return False
    default = cast("Mapping[str, Any]", schema)["default"]
    return type(default) is type(value) and default == value


def _declared(schema: Any) -> Iterator[str]:
    """Yield the property names that a schema declares, at any depth."""
    match schema:
        case dict():
            for key, each in cast("dict[str, Any]", schema).items():
                if key == "properties" and isinstance(each, dict):
                    yield from cast("dict[str, Any]", each)
                yield from _declared(each)
        case list():
            for each in cast("list[Any]", schema):
                yield from _declared(each)
        case _:
            return


def _leaves(path: str, value: Any, declared: frozenset[str], depth: int) -> Iterator[tuple[str, Any]]:
    """Yield every value in an argument. A property name that the schema does not declare is a value too."""
    match value:
        case dict() if value and depth < DEPTH_MAX:
            for key, each in cast("dict[str, Any]", value).items():
                if key not in declared:
                    yield f"{path}.(name)", key
                yield from _leaves(f"{path}.{key}", each, declared, depth + 1)
        case list() if value and depth < DEPTH_MAX:
            for at, each in enumerate(cast("list[Any]", value)):
                yield from _leaves(f"{path}.{at}", each, declared, depth + 1)
        case _:
            yield path, value


def _finding(
    policy: OriginPolicy,
    spec: ToolSpec,
    properties: Mapping[str, Any],
    given: Mapping[str, Any],
    name: str,
    path: str,
    value: Any,
    known: Known,
) -> Finding:
    pattern = ".".join("*" if part.isdigit() else part for part in path.split("."))
    rule = policy.argument(spec.name, pattern) or policy.argument(spec.name, name)
    standing = frozenset[Standing](rule.standing if rule else ())
    if rule and any(other in given for other in rule.unless):
        standing = frozenset[Standing]()
    if Effect.SENDS_OUT in spec.effects:
        standing -= {Standing.QUOTED}
    sorts = sorts_of(rule.kind) if rule and rule.kind else (_sort_by_schema(properties, name, path, value),)
    by = explained(
        known,
        sorts,
        value,
        name=path.rpartition(".")[2] if not path.rpartition(".")[2].isdigit() else name,
        standing=standing,
        says=rule.says if rule else {},
        others={other: content for other, content in given.items() if other != name},
    )
    shown = str(value)
    shown = shown if len(shown) <= SHOWN_CHARS_MAX else shown[: SHOWN_CHARS_MAX - 1] + "…"
    return Finding(path, shown, by=by) if by else Finding(path, shown, why=f"a {sorts[0].kind} that nobody named")


_FORMATS = {"email": Kind.EMAIL, "uri": Kind.URL, "date": Kind.DATE, "date-time": Kind.MOMENT, "time": Kind.TIME}


def _sort_by_schema(properties: Mapping[str, Any], name: str, path: str, value: Any) -> Sort:
    """Infer the type of an argument without a rule: from its name and schema, or else from the form of its value."""
    last = path.rpartition(".")[2]
    last = name if last.isdigit() else last
    schema = cast("Mapping[str, Any]", (properties.get(name) or {}) if path == name else {})
    if last in ("id", "id_") or last.endswith(("_id", "_ids", "Id")):
        return Sort(Kind.ID, last.removesuffix("s").removesuffix("_id") if last.endswith(("_id", "_ids")) else "")
    if "enum" in schema or "const" in schema or (isinstance(value, bool) and schema.get("type") != "string"):
        return Sort(Kind.CHOICE)
    if (found := _FORMATS.get(str(schema.get("format")))) is not None:
        return Sort(found)
    if isinstance(value, int | float) or schema.get("type") in ("number", "integer"):
        return Sort(Kind.NUMBER)
    return Sort(kind_by_form(str(value)))
