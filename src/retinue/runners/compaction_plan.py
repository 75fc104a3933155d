"""Plans a compaction, which replaces the older part of a context with a summary, and requests that summary.

The caller makes the model calls, accounts for their cost, limits their time and stores the summary.
A failed compaction changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from retinue.config.models import CompactionMode
from retinue.domain.errors import RetinueError
from retinue.domain.model import DEFAULT_OUTPUT_TOKENS_MAX
from retinue.domain.record import Record, Reply, StopReason, Summary, UserTurn
from retinue.domain.tool import ToolResult
from retinue.runners.base import SILENT_TOKENS
from retinue.runners.compaction_prompt import (
    OVERSIZED_SHARE,
    SummaryRequest,
    conversation_request,
    fit_entries,
    format_entry,
    list_facts,
    merge_request,
)
from retinue.runners.model_context import leading_summary
from retinue.runners.result_pruner import RESULT_CHARS_KEPT_MIN, cut_at_line, result_chars_max
from retinue.runners.token_estimate import replace_images, tokens_of_text, weight_of_record

ESTIMATE_MARGIN = 1.2  # safety factor for token estimates
SUMMARY_SHARE_MAX = 0.15
QUOTE_SHARE_MAX = 0.2
LISTING_SHARE_MAX = 0.05
OUTPUT_SHARE_MAX = 0.25
INPUT_TOKENS_MIN = 500  # only a window far below the accepted minimum leaves less
PART_SHARE = 0.4
PART_SHARE_MIN = 0.15
LARGE_RECORD_SHARE = 0.1
SPLIT_RECORDS_MIN = 4
PARTS_MAX = 8

QUOTE_HEAD = "## The newest message, word for word"
QUOTE_IN_PROGRESS = "You are still working on it. Continue from here, and do not start over."
QUOTE_ANSWERED = "It has been answered."


class NotCompacted(RetinueError):
    """The context could not be summarized, and is unchanged."""

    code = "context.not_compacted"

    def __init__(self, because: str) -> None:
        super().__init__(
            "this conversation was not compacted",
            because=because,
            try_this="continue as before, send `/compact` to try again, or reset the context with `/reset`",
        )


class CompactionCut(Struct, frozen=True, kw_only=True):
    """Where a compaction divides a context: the records to summarize, and those to keep, from `kept_from` on.

    `quoted` is the newest user turn, if that turn is among the summarized records. The summary then
    contains it verbatim.
    """

    summarized: tuple[Record, ...]
    kept: tuple[Record, ...]
    kept_from: int
    summarized_tokens: int
    kept_tokens: int
    quoted: str = ""


def plan_cut(
    records: Sequence[Record],
    *,
    window_tokens: int,
    keep_tokens: int,
    records_tokens: int = 0,
    keep_fewest: bool = False,
    gain_tokens_min: int = 0,
) -> CompactionCut | None:
    """Decide where to cut: summarize the older records, and keep the newest ones that fit into `keep_tokens`.

    With `keep_fewest`, keep only the newest turn. That turn is always kept: as a record, or quoted
    in the summary if too many records of its run follow it. A call is never separated from its
    result. `records_tokens` is the actual size of all records, if that is more than the estimate.
    Returns None if everything fits, if the cut saves fewer than `gain_tokens_min` tokens, or if only
    an earlier summary would be summarized.
    """
    cap = result_chars_max(window_tokens)
    weights = [weight_of_record(record, result_chars_max=cap).tokens for record in records]
    after = _suffix_sums(weights)
    newest = max((i for i, r in enumerate(records) if isinstance(r.body, UserTurn)), default=len(records))
    quote = _newest_turn_text(records, newest, window_tokens)
    heavier = max(records_tokens / max(after[0], 1), 1.0)
    keep_tokens = int(keep_tokens / heavier / ESTIMATE_MARGIN)
    if after[0] <= keep_tokens and not keep_fewest:
        return None
    place = _best_cut_index(
        records,
        after,
        newest_turn_index=newest,
        keep_tokens=keep_tokens,
        quote_tokens=tokens_of_text(quote),
        keep_fewest=keep_fewest,
    )
    if place is None:
        return None
    told_tokens = after[0] - after[place]
    old_tokens = weights[0] if leading_summary(records) is not None else 0
    if told_tokens - old_tokens < max(gain_tokens_min, 1):
        return None
    return CompactionCut(
        summarized=tuple(records[:place]),
        kept=tuple(records[place:]),
        kept_from=min(record.seq for record in records[place:]),
        summarized_tokens=told_tokens,
        kept_tokens=after[place],
        quoted=quote if newest < place or newest == len(records) else "",
    )


def _best_cut_index(
    records: Sequence[Record],
    tokens_from: Sequence[int],
    *,
    newest_turn_index: int,
    keep_tokens: int,
    quote_tokens: int,
    keep_fewest: bool,
) -> int | None:
    places = _cut_indexes(records)
    up_to_turn = [place for place in places if place <= newest_turn_index]
    for place in up_to_turn[-1:] if keep_fewest else up_to_turn:
        if tokens_from[place] <= keep_tokens:
            return place
    within_run = [place for place in places if place > newest_turn_index and isinstance(records[place].body, Reply)]
    for place in within_run:
        if tokens_from[place] + quote_tokens <= keep_tokens:
            return place
    # No cut keeps few enough tokens, so keep as little as possible.
    return next(reversed(within_run or up_to_turn), None)


def _newest_turn_text(records: Sequence[Record], newest_turn_index: int, window_tokens: int) -> str:
    """Return the text of the newest user turn, from the quote in the summary if a summary has replaced the turn."""
    if newest_turn_index < len(records):
        body = records[newest_turn_index].body
        assert isinstance(body, UserTurn)
        hint = "the rest of it has been read"
        return _shorten_to_tokens(body.text.strip(), int(window_tokens * QUOTE_SHARE_MAX), hint=hint)
    summary = leading_summary(records)
    quoted = summary.body.text.partition(QUOTE_HEAD)[2] if summary and isinstance(summary.body, Summary) else ""
    for end in (QUOTE_IN_PROGRESS, QUOTE_ANSWERED):
        quoted = quoted.strip().removesuffix(end)
    return quoted.strip()


def _cut_indexes(records: Sequence[Record]) -> list[int]:
    """Return the indexes at which a context may be cut.

    A cut is never directly before a tool result. Results are placed next to their calls, so record
    numbers are not always in order. A cut is allowed only if all numbers after it are higher than
    those before it. An earlier summary is always part of the next summary.
    """
    highest: list[int] = []
    so_far = 0
    for record in records:
        highest.append(so_far)
        if not isinstance(record.body, Summary):
            so_far = max(so_far, record.seq)
    places: list[int] = []
    lowest = so_far + 1
    for place in range(len(records) - 1, 0, -1):
        lowest = min(lowest, records[place].seq)
        if lowest > highest[place] and not isinstance(records[place].body, ToolResult):
            places.append(place)
    places.reverse()
    return places


def _suffix_sums(weights: Sequence[int]) -> list[int]:
    """Return, for each index, the sum of the weights from there to the end."""
    sums = [0] * (len(weights) + 1)
    for place in range(len(weights) - 1, -1, -1):
        sums[place] = sums[place + 1] + weights[place]
    return sums


# --- summary ---


async def summarize_cut(
    cut: CompactionCut,
    request_reply: Callable[[SummaryRequest], Awaitable[Reply]],
    *,
    window_tokens: int,
    mode: CompactionMode = CompactionMode.DEFAULT,
    focus: str = "",
) -> str:
    """Return the summary of the records before the cut. It is shorter than the text that it replaces.

    Every request fits into the `window_tokens` of the model that `request_reply` calls. Raises
    `NotCompacted` if no reply is usable. Errors of `request_reply` are not caught.
    """
    output_tokens_max = min(DEFAULT_OUTPUT_TOKENS_MAX, int(window_tokens * OUTPUT_SHARE_MAX))
    budget = max(int((window_tokens - output_tokens_max) / ESTIMATE_MARGIN) - _overhead_tokens(focus), INPUT_TOKENS_MIN)
    safeguard = mode is CompactionMode.SAFEGUARD
    oversized = int(window_tokens * OVERSIZED_SHARE) if safeguard else None
    entries = [text for record in cut.summarized if (text := format_entry(record, oversized_tokens=oversized))]
    parts = _split_entries(entries, window_tokens) if safeguard else [entries]
    summaries: list[str] = []
    for number, part in enumerate(parts, start=1):
        request = conversation_request(
            fit_entries(part, budget), focus=focus, part=number, parts=len(parts), output_tokens_max=output_tokens_max
        )
        summaries.append(_summary_text(await request_reply(request)))
    if len(summaries) > 1:
        merging = merge_request(fit_entries(summaries, budget), focus=focus, output_tokens_max=output_tokens_max)
        summaries = [_summary_text(await request_reply(merging))]
    return _compose_summary(cut, summaries[0], window_tokens=window_tokens, with_file_list=safeguard)


def _overhead_tokens(focus: str) -> int:
    empty = conversation_request((), focus=focus, part=1, parts=PARTS_MAX, output_tokens_max=0)
    return tokens_of_text(empty.instructions) + tokens_of_text(empty.text)


def _split_entries(entries: Sequence[str], window_tokens: int) -> list[list[str]]:
    """Split entries into parts of about equal weight, if they are too long to summarize well in one request."""
    weights = [tokens_of_text(text) for text in entries]
    total = sum(weights)
    if not entries:
        return [[]]
    share = PART_SHARE
    average = total / len(entries) / window_tokens
    if average > LARGE_RECORD_SHARE:  # few and large entries: smaller parts, so that one entry does not fill a part
        share = max(PART_SHARE_MIN, PART_SHARE - 2 * (average - LARGE_RECORD_SHARE))
    part_tokens = window_tokens * share / ESTIMATE_MARGIN
    if len(entries) < SPLIT_RECORDS_MIN or total <= part_tokens:
        return [list(entries)]
    count = min(PARTS_MAX, len(entries), int(-(-total // part_tokens)))
    parts: list[list[str]] = [[] for _ in range(count)]
    so_far = 0
    for text, weight in zip(entries, weights, strict=True):
        parts[min(so_far * count // max(total, 1), count - 1)].append(text)
        so_far += weight
    return [part for part in parts if part]


def _summary_text(reply: Reply) -> str:
    text = reply.text.strip()
    if reply.stop is StopReason.FILTERED:
        raise NotCompacted("the model refused to summarize it")
    if not text or text in SILENT_TOKENS:
        raise NotCompacted("the model's summary was empty")
    return replace_images(text)


def _compose_summary(cut: CompactionCut, text: str, *, window_tokens: int, with_file_list: bool) -> str:
    words = _shorten_to_tokens(
        _escape_quote_heading(text), int(window_tokens * SUMMARY_SHARE_MAX), hint="it was too long"
    )
    listed = ""
    if with_file_list:
        listed = _escape_quote_heading(list_facts(cut.summarized))
        listed = _shorten_to_tokens(listed, int(window_tokens * LISTING_SHARE_MAX), hint="there are too many")
    quote = ""
    if cut.quoted:
        last = cut.kept[-1].body
        answered = isinstance(last, Reply) and not last.calls
        quote = f"{QUOTE_HEAD}\n\n{cut.quoted}\n\n{QUOTE_ANSWERED if answered else QUOTE_IN_PROGRESS}"
    for parts in ((words, listed, quote), (words, "", quote)):
        whole = "\n\n".join(filter(None, parts))
        if tokens_of_text(whole) < cut.summarized_tokens:
            return whole
    raise NotCompacted("the summary was longer than the text it would replace")


def _escape_quote_heading(text: str) -> str:
    """Replace the heading of the quoted message in other text, so that the next compaction finds only the real one."""
    return text.replace(QUOTE_HEAD, "(a heading)")


def _shorten_to_tokens(text: str, tokens_max: int, *, hint: str) -> str:
    """Shorten text to about `tokens_max` tokens, if possible at a line end, and add a note if it was shortened."""
    whole, chars, tokens = text, len(text), tokens_of_text(text)
    while tokens > tokens_max and chars > RESULT_CHARS_KEPT_MIN:
        chars = max(min(chars - 1, chars * tokens_max // tokens), RESULT_CHARS_KEPT_MIN)
        text = cut_at_line(whole, chars, hint=hint)
        tokens = tokens_of_text(text)
    return text
