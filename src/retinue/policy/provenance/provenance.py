"""Decides whether a tool call needs approval because the model has read untrusted content.

Once untrusted content is in a context, its influence on the model's output cannot be determined, so
values are not tracked through the model. Instead, each argument of the call needs one of three
explanations. The owner wrote an equal value of the same type. Or an entry of a tool result contains such
a value, and the owner named that entry. Or a rule in the settings permits the argument. A person is
asked about a call with any other argument.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any, cast

from msgspec import Struct, field

from retinue.config.provenance import StandingExplanation, ValueKind, ValueType, parse_value_types
from retinue.domain.decision import Decision, DecisionKind
from retinue.domain.record import ContextStart, Note, Record, Reply, Summary, UserTurn
from retinue.domain.tool import Call, ToolEffect, ToolResult, ToolSpec, call_hash
from retinue.domain.trust import Trust
from retinue.policy.provenance.provenance_match import KnownValues, explain_value
from retinue.policy.provenance.provenance_rules import ProvenancePolicy
from retinue.policy.provenance.provenance_text import extract_user_text, infer_kind, normalize_text
from retinue.policy.provenance.provenance_values import extract_entries
from retinue.text.untrusted_wrapper import unwrap_untrusted

GUARDED_EFFECTS = frozenset({ToolEffect.WRITES, ToolEffect.SENDS_OUT, ToolEffect.SPENDS, ToolEffect.RUNS_CODE})
ARGUMENTS_MAX = 200  # values per call, including nested ones
DEPTH_MAX = 8
SHOWN_CHARS_MAX = 80


class ContextSource(Struct, frozen=True, kw_only=True):
    """One item of the context: the text of a user or the result of a call.

    For items of other kinds, only `trust` is set.
    """

    trust: Trust
    text: str = ""
    tool: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    output: str = ""


class ProvenanceContext(Struct, frozen=True, kw_only=True):
    """What the model read before a call, and the calls performed since the owner's last message."""

    sources: tuple[ContextSource, ...] = ()
    calls_done: tuple[Call, ...] = ()

    @property
    def has_untrusted(self) -> bool:
        return any(source.trust is Trust.UNTRUSTED for source in self.sources)


class ArgumentFinding(Struct, frozen=True):
    """The result of checking one value in a tool call: the explanation of the value, or why there is none."""

    argument: str
    value: str
    explained_by: str = ""
    unexplained_because: str = ""

    @property
    def is_explained(self) -> bool:
        return bool(self.explained_by)


class ProvenanceDecision(Struct, frozen=True, kw_only=True):
    decision: Decision
    findings: tuple[ArgumentFinding, ...] = ()


def build_context(records: Iterable[Record]) -> ProvenanceContext:
    """Build the provenance context from the records of a session.

    Summaries and notes do not count as an explanation of a value, because they are not the owner's words.

    The caller may pass the owner's messages of the whole session, including those that a summary
    has replaced.
    """
    sources: list[ContextSource] = []
    calls: dict[str, Call] = {}
    done: list[Call] = []
    for record in records:
        match record.body:
            case UserTurn(text=text, attachments=attachments):
                sources.append(ContextSource(trust=record.trust, text=extract_user_text(text)))
                sources.extend(
                    ContextSource(trust=Trust.UNTRUSTED) for _ in attachments if record.trust is not Trust.OWNER
                )
                if record.trust is Trust.OWNER:
                    done.clear()
            case Reply(calls=asked):
                calls.update((call.id, call) for call in asked)
            case ToolResult() as result:
                call = calls.get(result.call, Call(id=result.call, tool=result.tool))
                if not result.failed:
                    done.append(call)
                sources.append(_build_result_source(record, result, call))
            case Summary() | Note() | ContextStart():
                sources.append(ContextSource(trust=record.trust))
    return ProvenanceContext(sources=tuple(sources), calls_done=tuple(done))


def _build_result_source(record: Record, result: ToolResult, call: Call) -> ContextSource:
    untrusted = Trust.UNTRUSTED in (record.trust, result.trust)
    trust = Trust.UNTRUSTED if untrusted else result.trust
    if result.failed or call.tool != result.tool:
        return ContextSource(trust=trust)
    return ContextSource(
        trust=trust, tool=result.tool, arguments=call.arguments, output=unwrap_untrusted(result.output)
    )


def has_guarded_effect(spec: ToolSpec) -> bool:
    """Whether a call of this tool can change or reveal something. An outbound request reveals its arguments."""
    if spec.effects & GUARDED_EFFECTS:
        return True
    return ToolEffect.READS_UNTRUSTED in spec.effects and ToolEffect.READS_PRIVATE not in spec.effects


def decide_provenance(
    policy: ProvenancePolicy,
    spec: ToolSpec,
    call: Call,
    context: ProvenanceContext,
    *,
    today: date | None = None,
    known: KnownValues | None = None,
) -> ProvenanceDecision:
    """Decide whether a call is allowed or needs approval, with a finding for each argument.

    This function never denies a call.

    `known` is the result of `collect_known_values`. If it is None, this function calls `collect_known_values` itself.
    """
    if not has_guarded_effect(spec):
        return ProvenanceDecision(decision=Decision(DecisionKind.ALLOW, "it only reads the owner's data"))
    if not context.has_untrusted:
        return ProvenanceDecision(decision=Decision(DecisionKind.ALLOW, "no untrusted content was read"))
    if known is None:
        known = collect_known_values(policy, context, today=today)
    findings = tuple(_check_arguments(policy, spec, call, context, known))
    open_ones = [finding for finding in findings if not finding.is_explained]
    if not open_ones:
        return ProvenanceDecision(
            decision=Decision(DecisionKind.ALLOW, "every argument is explained"), findings=findings
        )
    unexplained = "; ".join(
        f"{finding.argument} = {finding.value!r} ({finding.unexplained_because})" for finding in open_ones[:5]
    )
    because = f"untrusted content was read, and nothing that the owner wrote explains {unexplained}"
    return ProvenanceDecision(decision=Decision(DecisionKind.ASK, because), findings=findings)


def collect_known_values(
    policy: ProvenancePolicy, context: ProvenanceContext, *, today: date | None = None
) -> KnownValues:
    words = [source.text for source in context.sources if source.text and source.trust in policy.speakers]
    entries = [
        entry
        for source in context.sources
        if source.tool
        for entry in extract_entries(policy, source.tool, source.arguments, source.output)
    ]
    return KnownValues.build(policy, words, entries, today=today)


def _check_arguments(
    policy: ProvenancePolicy, spec: ToolSpec, call: Call, context: ProvenanceContext, known: KnownValues
) -> Iterator[ArgumentFinding]:
    yield _check_tool(policy, spec, known)
    if any(call_hash(call) == call_hash(before) for before in context.calls_done):
        yield ArgumentFinding(
            "(again)", spec.name, unexplained_because="the same call was already made since the owner last wrote"
        )
    properties = cast("Mapping[str, Any]", spec.parameters.get("properties") or {})
    required = cast("Sequence[str]", spec.parameters.get("required") or ())
    given = {
        name: value
        for name, value in call.arguments.items()
        if name in required or not _is_empty_or_default(properties, name, value)
    }
    declared = frozenset(_iterate_declared_names(spec.parameters))
    count = 0
    for name, value in given.items():
        for path, each in _iterate_values(name, value, declared, 0):
            count += 1
            if count > ARGUMENTS_MAX:
                yield ArgumentFinding(path, "", unexplained_because=f"more than {ARGUMENTS_MAX} values")
                return
            yield _check_value(policy, spec, properties, given, name, path, each, known)


def _check_tool(policy: ProvenancePolicy, spec: ToolSpec, known: KnownValues) -> ArgumentFinding:
    """Check whether the owner requested this tool, or a rule permits it.

    For example, the owner may have named a file without wanting it deleted.
    """
    rule = policy.find_act_rule(spec.name)
    if rule is None:
        words = [word for word in re.split(r"[^a-zA-Z]+", normalize_text(spec.name)) if word]
        if words and all(known.has_word(word) for word in words):
            return ArgumentFinding("(tool)", spec.name, explained_by="the owner requested it by name")
        return ArgumentFinding("(tool)", spec.name, unexplained_because="the owner did not request it")
    if "*" in rule.words:
        return ArgumentFinding("(tool)", spec.name, explained_by="a standing rule")
    for word in rule.words:
        if known.has_word(word):
            return ArgumentFinding("(tool)", spec.name, explained_by=f"the owner wrote '{word}'")
    return ArgumentFinding("(tool)", spec.name, unexplained_because="the owner did not request it")


def _is_empty_or_default(properties: Mapping[str, Any], name: str, value: Any) -> bool:
    """Whether a value is empty, or equal to the default in the schema."""
    if value is None or value == [] or value == {}:
        return True
    schema = properties.get(name)
    if not isinstance(schema, dict) or "default" not in schema:
        return False
    default = cast("Mapping[str, Any]", schema)["default"]
    return type(default) is type(value) and default == value


def _iterate_declared_names(schema: Any) -> Iterator[str]:
    """Yield the property names that a schema declares, at any depth."""
    match schema:
        case dict():
            for key, each in cast("dict[str, Any]", schema).items():
                if key == "properties" and isinstance(each, dict):
                    yield from cast("dict[str, Any]", each)
                yield from _iterate_declared_names(each)
        case list():
            for each in cast("list[Any]", schema):
                yield from _iterate_declared_names(each)
        case _:
            return


def _iterate_values(path: str, value: Any, declared: frozenset[str], depth: int) -> Iterator[tuple[str, Any]]:
    """Yield every value in an argument. A property name that the schema does not declare is a value too."""
    match value:
        case dict() if value and depth < DEPTH_MAX:
            for key, each in cast("dict[str, Any]", value).items():
                if key not in declared:
                    yield f"{path}.(name)", key
                yield from _iterate_values(f"{path}.{key}", each, declared, depth + 1)
        case list() if value and depth < DEPTH_MAX:
            for at, each in enumerate(cast("list[Any]", value)):
                yield from _iterate_values(f"{path}.{at}", each, declared, depth + 1)
        case _:
            yield path, value


def _check_value(
    policy: ProvenancePolicy,
    spec: ToolSpec,
    properties: Mapping[str, Any],
    given: Mapping[str, Any],
    name: str,
    path: str,
    value: Any,
    known: KnownValues,
) -> ArgumentFinding:
    pattern = ".".join("*" if part.isdigit() else part for part in path.split("."))
    rule = policy.find_argument_rule(spec.name, pattern) or policy.find_argument_rule(spec.name, name)
    explanations = frozenset[StandingExplanation](rule.explanations if rule else ())
    if rule and any(other in given for other in rule.unless):
        explanations = frozenset[StandingExplanation]()
    if ToolEffect.SENDS_OUT in spec.effects:
        explanations -= {StandingExplanation.QUOTED}
    sorts = parse_value_types(rule.kind) if rule and rule.kind else (_infer_value_type(properties, name, path, value),)
    by = explain_value(
        known,
        sorts,
        value,
        name=path.rpartition(".")[2] if not path.rpartition(".")[2].isdigit() else name,
        explanations=explanations,
        says=rule.choice_words if rule else {},
        others={other: content for other, content in given.items() if other != name},
    )
    shown = str(value)
    shown = shown if len(shown) <= SHOWN_CHARS_MAX else shown[: SHOWN_CHARS_MAX - 1] + "…"
    return (
        ArgumentFinding(path, shown, explained_by=by)
        if by
        else ArgumentFinding(path, shown, unexplained_because=f"the owner did not mention this {sorts[0].kind}")
    )


_FORMATS = {
    "email": ValueKind.EMAIL,
    "uri": ValueKind.URL,
    "date": ValueKind.DATE,
    "date-time": ValueKind.MOMENT,
    "time": ValueKind.TIME,
}


def _infer_value_type(properties: Mapping[str, Any], name: str, path: str, value: Any) -> ValueType:
    """Infer the type of an argument if no rule sets it: from its name and schema, or else from its value's form."""
    last = path.rpartition(".")[2]
    last = name if last.isdigit() else last
    schema = cast("Mapping[str, Any]", (properties.get(name) or {}) if path == name else {})
    if last in ("id", "id_") or last.endswith(("_id", "_ids", "Id")):
        return ValueType(
            ValueKind.ID, last.removesuffix("s").removesuffix("_id") if last.endswith(("_id", "_ids")) else ""
        )
    if "enum" in schema or "const" in schema or (isinstance(value, bool) and schema.get("type") != "string"):
        return ValueType(ValueKind.CHOICE)
    if (found := _FORMATS.get(str(schema.get("format")))) is not None:
        return ValueType(found)
    if isinstance(value, int | float) or schema.get("type") in ("number", "integer"):
        return ValueType(ValueKind.NUMBER)
    return ValueType(infer_kind(str(value)))
