"""Shortens tool results in model input that are too long or too old. Stored records never change.

A single result never takes more than a fixed share of the window. If pruning is on and the
provider's prompt cache has expired, old results are also trimmed or, if that is not enough,
replaced by a placeholder. While the prompt cache is valid, an unchanged context costs less than a
shortened one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase

from msgspec import Struct, field

from retinue.config.models import PrunedToolSettings, PruningMode, PruningSettings, SoftTrimSettings
from retinue.domain.ids import SessionId
from retinue.domain.record import Record, RecordKind, Reply, Summary, UserTurn
from retinue.domain.structs import replace
from retinue.domain.tool import ToolResult
from retinue.runners.token_estimate import CHARS_PER_TOKEN, compact_json, contains_image

RESULT_SHARE_MAX = 0.3
RESULT_SHARE_TRUNCATED = 0.02  # after an overflow that compaction could not fix
RESULT_CHARS_CAP = 400_000
RESULT_CHARS_KEPT_MIN = 2_000
LINE_END_SEARCH_SHARE = 0.2  # share of the end that may be dropped to end at a full line
PRUNING_IMAGE_CHARS = 8_000  # more than in an estimate: this decides when to prune, and pruning early is cheap
CACHED_CHARS_MAX = 8 * 1024 * 1024
CACHED_SESSIONS_MAX = 256
_TOOL = RecordKind.TOOL


def result_chars_max(window_tokens: int, *, share: float = RESULT_SHARE_MAX) -> int:
    """Return the maximum number of characters of one result, at four characters per token."""
    return max(RESULT_CHARS_KEPT_MIN, min(int(window_tokens * CHARS_PER_TOKEN * share), RESULT_CHARS_CAP))


def cap_results(records: Sequence[Record], chars_max: int) -> Sequence[Record]:
    """Return the records with every result cut to `chars_max` characters. If none was longer, return the same list."""
    return _replace_records(
        records, {i: _cap_result(r, chars_max) for i, r in enumerate(records) if _is_longer(r, chars_max)}
    )


def _is_longer(record: Record, chars_max: int) -> bool:
    return record.kind is _TOOL and isinstance(record.body, ToolResult) and len(record.body.output) > chars_max


def _cap_result(record: Record, chars_max: int) -> Record:
    assert isinstance(record.body, ToolResult)
    return record._replace(body=replace(record.body, output=cut_at_line(record.body.output, chars_max)))


def cut_at_line(text: str, chars_max: int, *, hint: str = "ask for the rest in smaller parts") -> str:
    """Return the beginning of the text, up to a line end if one is near, with a note that the rest was cut."""
    if len(text) <= chars_max:
        return text
    note = f"\n\n[cut: this is the beginning of {len(text)} characters; {hint}]"
    kept = max(chars_max - len(note), min(chars_max, RESULT_CHARS_KEPT_MIN))
    least = max(int(kept * (1 - LINE_END_SEARCH_SHARE)), min(kept, RESULT_CHARS_KEPT_MIN))
    line_end = text.rfind("\n", least, kept + 1)
    return text[: line_end if line_end >= 0 else kept] + note


def _replace_records(records: Sequence[Record], replacements: Mapping[int, Record]) -> Sequence[Record]:
    if not replacements:
        return records
    view = list(records)
    for index, record in replacements.items():
        view[index] = record
    return view


# --- pruning: which results are shortened, and to what ---


def prune_results(records: Sequence[Record], settings: PruningSettings, *, window_tokens: int) -> dict[int, Record]:
    """Return the shortened records of old results, by index. The caller decides when to prune.

    The results of the last replies, everything before the first turn, and results with images stay
    unchanged.
    """
    found = _prunable_indexes(records, settings)
    window_chars = window_tokens * CHARS_PER_TOKEN
    chars = sum(map(_record_chars, records))
    if not found or chars < window_chars * settings.soft_trim_ratio:
        return {}
    shortened: dict[int, Record] = {}
    for index in found:
        trimmed = _trim_result(records[index], settings.soft_trim)
        if trimmed is not None:
            chars -= _record_chars(records[index]) - _record_chars(trimmed)
            shortened[index] = trimmed
    clear_from = window_chars * settings.hard_clear_ratio
    prunable = sum(_record_chars(shortened.get(index, records[index])) for index in found)
    if chars < clear_from or not settings.hard_clear.enabled or prunable < settings.min_prunable_chars:
        return shortened
    for index in found:  # oldest first
        if chars < clear_from:
            break
        before = shortened.get(index, records[index])
        cleared = _with_output(records[index], settings.hard_clear.placeholder)
        if _record_chars(cleared) < _record_chars(before):
            chars -= _record_chars(before) - _record_chars(cleared)
            shortened[index] = cleared
    return shortened


def _prunable_indexes(records: Sequence[Record], settings: PruningSettings) -> list[int]:
    end = len(records)
    if settings.keep_last_assistants:
        replies = [i for i, r in enumerate(records) if isinstance(r.body, Reply)]
        if len(replies) < settings.keep_last_assistants:
            return []
        end = replies[-settings.keep_last_assistants]
    # A summary contains earlier turns, so records after it follow a turn.
    first = next((i for i, r in enumerate(records) if isinstance(r.body, UserTurn | Summary)), end)
    return [i for i in range(first, end) if _may_shorten(records[i], settings.tools)]


def _may_shorten(record: Record, tools: PrunedToolSettings) -> bool:
    body = record.body
    if not isinstance(body, ToolResult) or contains_image(body.output):
        return False
    return _matches_any(body.tool, tools.allow) and not _matches_any(body.tool, tools.deny)


def _matches_any(tool: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(tool.casefold(), pattern.casefold()) for pattern in patterns)


def _trim_result(record: Record, settings: SoftTrimSettings) -> Record | None:
    assert isinstance(record.body, ToolResult)
    output, head, tail = record.body.output, settings.head_chars, settings.tail_chars
    if len(output) <= settings.max_chars or len(output) <= head + tail:
        return None
    end = output[-tail:] if tail else ""
    note = f"[trimmed: the first {head} and the last {tail} of {len(output)} characters are shown]"
    trimmed = f"{output[:head]}\n...\n{end}\n\n{note}"
    return _with_output(record, trimmed) if len(trimmed) < len(output) else None


def _with_output(record: Record, output: str) -> Record:
    assert isinstance(record.body, ToolResult)
    return record._replace(body=replace(record.body, output=output))


def _record_chars(record: Record) -> int:
    match record.body:
        case Reply() as reply:
            asked = sum(len(call.tool) + len(compact_json(call.arguments)) for call in reply.calls)
            return len(reply.text) + len(reply.thinking) + asked
        case ToolResult(output=output):
            return PRUNING_IMAGE_CHARS if contains_image(output) else len(output)
        case UserTurn(text=text, attachments=attachments):
            images = sum(attachment.media_type.startswith("image/") for attachment in attachments)
            return len(text) + images * PRUNING_IMAGE_CHARS
        case body:
            return len(body.text)


def seconds_since_reply(records: Sequence[Record], now: datetime) -> float | None:
    """Return the seconds since the last model reply, or None. Searches from the end, as the reply is near the end."""
    last = next((r for r in reversed(records) if r.kind is RecordKind.ASSISTANT), None)
    return (now - last.at).total_seconds() if last is not None else None


# --- model input from turn to turn ---


class _ShortenedContext(Struct):
    """The cached state of one context: how many records were seen, and which are replaced by shorter ones."""

    chars_max: int
    seen_records: int = 0
    last_record: Record | None = None
    capped: dict[int, Record] = field(default_factory=dict[int, Record])
    pruned: dict[int, Record] = field(default_factory=dict[int, Record])

    def continues_with(self, records: Sequence[Record], chars_max: int) -> bool:
        known = self.seen_records == 0 or (
            len(records) >= self.seen_records and records[self.seen_records - 1] is self.last_record
        )
        return known and self.chars_max == chars_max

    def cap_new_records(self, records: Sequence[Record]) -> None:
        for index, record in enumerate(records[self.seen_records :], self.seen_records):
            if record.kind is _TOOL and _is_longer(record, self.chars_max):
                self.capped[index] = _cap_result(record, self.chars_max)
        self.seen_records = len(records)
        self.last_record = records[-1] if records else None

    @property
    def chars(self) -> int:
        both = (*self.capped.values(), *self.pruned.values())
        return sum(len(r.body.output) for r in both if isinstance(r.body, ToolResult))


class ResultShortener:
    """Shortens tool results of contexts, and remembers the shortened records.

    A context gets the same record objects turn after turn, so they are not encoded again. If
    nothing is shortened, the caller gets its own list back. Pruned results stay pruned while the
    provider's prompt cache is valid, because that cache contains the pruned form. The memory
    for shortened records is limited: the least recently used contexts are evicted, and their
    pruned results are sent in full again.
    """

    def __init__(self, chars_max: int = CACHED_CHARS_MAX) -> None:
        self._chars_max = chars_max
        self._chars = 0
        self._contexts: OrderedDict[SessionId, _ShortenedContext] = OrderedDict()

    def shorten(
        self,
        session: SessionId,
        records: Sequence[Record],
        settings: PruningSettings,
        *,
        window_tokens: int,
        idle_s: float | None,
        truncate: bool = False,
    ) -> Sequence[Record]:
        """Return the records to send now, `idle_s` seconds after the last call.

        `truncate` applies a lower limit to every result.
        """
        share = RESULT_SHARE_TRUNCATED if truncate else RESULT_SHARE_MAX
        chars_max = result_chars_max(window_tokens, share=share)
        kept = self._pop(session)
        if kept is None or not kept.continues_with(records, chars_max):
            kept = _ShortenedContext(chars_max)
        kept.cap_new_records(records)
        if settings.mode is PruningMode.OFF:
            kept.pruned = {}
        elif idle_s is not None and idle_s >= settings.ttl_s:
            decided = prune_results(_replace_records(records, kept.capped), settings, window_tokens=window_tokens)
            kept.pruned = {i: r if kept.pruned.get(i) != r else kept.pruned[i] for i, r in decided.items()}
        self._store(session, kept)
        return _replace_records(records, {**kept.capped, **kept.pruned})

    def counts(self, session: SessionId) -> tuple[int, int]:
        """Return how many tool results were capped, and how many pruned, in the last call of a session."""
        kept = self._contexts.get(session)
        return (len(kept.capped.keys() - kept.pruned.keys()), len(kept.pruned)) if kept is not None else (0, 0)

    def _pop(self, session: SessionId) -> _ShortenedContext | None:
        kept = self._contexts.pop(session, None)
        if kept is not None:
            self._chars -= kept.chars
        return kept

    def _store(self, session: SessionId, context: _ShortenedContext) -> None:
        if context.chars > self._chars_max:
            return
        self._contexts[session] = context
        self._chars += context.chars
        while self._chars > self._chars_max or len(self._contexts) > CACHED_SESSIONS_MAX:
            _, evicted = self._contexts.popitem(last=False)
            self._chars -= evicted.chars
