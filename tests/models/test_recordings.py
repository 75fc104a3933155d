"""Replies of real providers, recorded by other projects and read by our clients with the same text, calls, seals and
failures. The recordings are not part of this repository: they are searched next to it, or in RETINUE_FIXTURES."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from models.replay import (
    Answer,
    collect_reply,
    differences,
    make_http_model,
    make_model_facts,
    open_provider_connections,
    provider,
)

HERE = Path(os.environ.get("RETINUE_FIXTURES") or Path(__file__).parents[3] / "shared" / "fixtures" / "providers")
RECORDINGS = sorted(HERE.glob("*/*.json"))
SEEDS = (1, 2, 3)

Reading = Mapping[str, Any]


def _refusal(expected: Reading) -> Reading | None:
    """A refusal is shown to the user, so it is text; the recordings store it separately."""
    words = expected.get("refusal")
    if not words:
        return None
    return {**expected, "text": expected["text"] + words, "order": [*expected["order"], "text"]}


def _thinking_counted_apart(expected: Reading) -> Reading | None:
    """xAI does not count thinking as output, but charges for it, as the price in the reply shows. Our `output`
    includes it."""
    usage = expected.get("usage") or {}
    if usage.get("reasoning", 0) <= usage.get("output", 0):
        return None
    return {**expected, "usage": {**usage, "output": usage["output"] + usage["reasoning"]}}


def _space_around_tags(expected: Reading) -> Reading | None:
    """White space next to <think> tags belongs neither to the thinking nor to the answer."""
    thinking, text = expected.get("thinking") or "", expected.get("text") or ""
    bare = {**expected, "thinking": thinking.strip(), "text": text.lstrip()}
    return bare if bare != expected else None


def _pause(expected: Reading) -> Reading | None:
    """A paused reply is sent back to be continued: it is neither an end nor a failure."""
    return {**expected, "finish": "pause"} if expected.get("finish_raw") == "pause_turn" else None


def _no_reason(expected: Reading) -> Reading | None:
    """Without a finish reason, complete calls mean `tool_call` and a complete body means `stop`."""
    if "error" in expected or expected.get("finish") is not None:
        return None
    return {**expected, "finish": "tool_call" if expected.get("tool_calls") else "stop"}


def _without_end(expected: Reading) -> Reading | None:
    """A stream without a finish reason and without an end marker was interrupted."""
    if "error" in expected or expected.get("finish") is not None:
        return None
    return {"error": "connection", "status": None, "retry_after": None}


# Intended differences: each returns another accepted reading of an `expected`, or None if it does not apply.
INTENDED_DIFFERENCES: tuple[Callable[[Reading], Reading | None], ...] = (
    _refusal,
    _thinking_counted_apart,
    _space_around_tags,
    _pause,
    _no_reason,
    _without_end,
)


def accepted_expectations(recording: Reading) -> list[Reading]:
    expectations: list[Reading] = [recording["expected"], *(recording.get("expected_alt") or [])]
    for otherwise in INTENDED_DIFFERENCES:
        expectations += [ours for expected in expectations if (ours := otherwise(expected)) is not None]
    return expectations


@pytest.mark.skipif(not RECORDINGS, reason=f"the recordings are not here: {HERE}")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_a_recorded_reply_of_a_real_provider_is_read_with_the_expected_text_calls_and_failure(path: Path) -> None:
    recording = json.loads(path.read_text(encoding="utf-8"))
    response = recording["response"]
    answer = Answer(status=response["status"], headers=response.get("headers") or {}, body=response["body"])
    model_name = (recording["request"].get("body") or {}).get("model") or "some-model"
    async with open_provider_connections() as link:
        for seed in SEEDS:
            async with provider(answer, seed=seed) as server:
                facts = make_model_facts(recording["provider"], model_name)
                collected = await collect_reply(make_http_model(link, server.url, recording["format"], facts=facts))
            readings = [differences(collected, expected) for expected in accepted_expectations(recording)]
            assert [] in readings, "\n".join(min(readings, key=len))
