"""One message takes a short path through the production server. `make shape` prints it beside its goals."""

from __future__ import annotations

import pytest
from flows.message_path import ANSWER, MessagePath, measure

# Today's values. They may only go down; the goals are in flows/message_path.py.
FILES_TO_MODEL_MAX = 11
MODEL_FRAMES_MAX = 14
TOOL_FRAMES_MAX = 9
DELIVERY_FRAMES_MAX = 11


@pytest.fixture(scope="module")
async def path(tmp_path_factory: pytest.TempPathFactory) -> MessagePath:
    return await measure(tmp_path_factory.mktemp("path"))


async def test_a_telegram_message_is_answered_over_the_measured_path(path: MessagePath) -> None:
    assert path.texts == [ANSWER]
    assert path.accept[0].file == "connectors/telegram/long_polling.py"
    assert path.model[0].file.startswith("engine/") and path.tool[0] == path.model[0]
    assert path.delivery[0].file.startswith("outbox/")


async def test_a_message_passes_few_files_from_the_connector_to_the_model(path: MessagePath) -> None:
    assert len(path.files_to_model) <= FILES_TO_MODEL_MAX, path.files_to_model


async def test_few_functions_are_on_the_stack_at_a_model_call_a_tool_call_and_a_delivery(path: MessagePath) -> None:
    assert len(path.model) <= MODEL_FRAMES_MAX, path.model
    assert len(path.tool) <= TOOL_FRAMES_MAX, path.tool
    assert len(path.delivery) <= DELIVERY_FRAMES_MAX, path.delivery
