"""The check that refuses a model with a small context window."""

from __future__ import annotations

import logging

import pytest

from retinue.domain.model import ModelFacts, ModelRef
from retinue.runners.window_guard import WindowChecker, WindowTooSmall, require_window, window_warning


def make_facts(window_tokens: int) -> ModelFacts:
    return ModelFacts(ref=ModelRef("acme", "tiny"), window_tokens=window_tokens)


@pytest.mark.spec("C41")
def test_a_model_with_a_window_under_16000_tokens_is_refused_with_the_setting_to_change() -> None:
    with pytest.raises(WindowTooSmall) as refused:
        require_window(make_facts(15_999))
    assert "15,999" in refused.value.sentence and "16,000" in refused.value.because
    assert "window_tokens" in refused.value.try_this and "acme/tiny" in refused.value.try_this
    require_window(make_facts(16_000))
    assert "not called" in window_warning(make_facts(15_999))


@pytest.mark.spec("C41")
def test_a_window_under_32000_tokens_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    guard = WindowChecker()
    with caplog.at_level(logging.WARNING):
        guard.check(make_facts(31_999))
        guard.check(make_facts(31_999))
    assert [r.message for r in caplog.records] == ["model window small"]
    assert "31,999" in window_warning(make_facts(31_999))


@pytest.mark.spec("C41")
def test_a_window_of_32000_tokens_or_more_is_not_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    WindowChecker().check(make_facts(32_000))
    assert not caplog.records and window_warning(make_facts(32_000)) == ""
