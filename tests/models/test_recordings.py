"""What other projects recorded of real providers, read by our clients: the same words, calls, seals and failures.

The recordings are not part of this repository. They are looked for beside it, or where RETINUE_FIXTURES points.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from models.replay import Answer, differences, facts_of, hear, linked, model_at, provider

HERE = Path(os.environ.get("RETINUE_FIXTURES") or Path(__file__).parents[3] / "shared" / "fixtures" / "providers")
RECORDINGS = sorted(HERE.glob("*/*.json"))
SEEDS = (1, 2, 3)

Reading = Mapping[str, Any]


def _refusal(expected: Reading) -> Reading | None:
    """A refusal is said to the person who waits, so its words are text; the recordings keep them apart."""
    words = expected.get("refusal")
    if not words:
        return None
    return {**expected, "text": expected["text"] + words, "order": [*expected["order"], "text"]}


def _thinking_counted_apart(expected: Reading) -> Reading | None:
    """xAI counts the tokens of thinking beside those of the answer; they are written and paid for all the same, as the
    price that the reply itself names shows. `output` holds all that was written."""
    usage = expected.get("usage") or {}
    if usage.get("reasoning", 0) <= usage.get("output", 0):
        return None
    return {**expected, "usage": {**usage, "output": usage["output"] + usage["reasoning"]}}


def _space_around_tags(expected: Reading) -> Reading | None:
    """White space next to <think> tags belongs to neither the thought nor the answer."""
    thinking, text = expected.get("thinking") or "", expected.get("text") or ""
    bare = {**expected, "thinking": thinking.strip(), "text": text.lstrip()}
    return bare if bare != expected else None


def _pause(expected: Reading) -> Reading | None:
    """A model that pauses wants its own words back and goes on: to us neither an end nor a failure."""
    return {**expected, "finish": "pause"} if expected.get("finish_raw") == "pause_turn" else None


def _no_reason(expected: Reading) -> Reading | None:
    """Where no reason for stopping is given, whole calls are a reason, and a whole body is one for anything else."""
    if "error" in expected or expected.get("finish") is not None:
        return None
    return {**expected, "finish": "tool_call" if expected.get("tool_calls") else "stop"}


def _without_end(expected: Reading) -> Reading | None:
    """A stream that stops without a reason and without a marker broke off: who knows what it was about to say."""
    if "error" in expected or expected.get("finish") is not None:
        return None
    return {"error": "connection", "status": None, "retry_after": None}


# Where we read otherwise, on purpose: what each gives for an `expected` is as good, or None where it does not apply.
OTHERWISE: tuple[Callable[[Reading], Reading | None], ...] = (
    _refusal,
    _thinking_counted_apart,
    _space_around_tags,
    _pause,
    _no_reason,
    _without_end,
)


def accepted(recording: Reading) -> list[Reading]:
    said: list[Reading] = [recording["expected"], *(recording.get("expected_alt") or [])]
    for otherwise in OTHERWISE:
        said += [ours for expected in said if (ours := otherwise(expected)) is not None]
    return said


@pytest.mark.skipif(not RECORDINGS, reason=f"the recordings are not here: {HERE}")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_a_recorded_reply_is_read_as_it_was_meant(path: Path) -> None:
    recording = json.loads(path.read_text(encoding="utf-8"))
    response = recording["response"]
    answer = Answer(status=response["status"], headers=response.get("headers") or {}, body=response["body"])
    model_name = (recording["request"].get("body") or {}).get("model") or "some-model"
    async with linked() as link:
        for seed in SEEDS:
            async with provider(answer, seed=seed) as server:
                facts = facts_of(recording["provider"], model_name)
                heard = await hear(model_at(link, server.url, recording["format"], facts=facts))
            readings = [differences(heard, expected) for expected in accepted(recording)]
            assert [] in readings, "\n".join(min(readings, key=len))
