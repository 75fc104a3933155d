"""Built-in data about providers and model families: URLs, formats, key variables and capabilities.

Settings take precedence. A quirk is a named difference between a provider's server and its wire
format. The wire formats handle quirks.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from datetime import date

from msgspec import Struct

from retinue.config.models import ProviderQuirk, WireFormat

MODELS_KNOWN_ON = date(2026, 11, 16)  # the date of the data here and in `retired_models`; providers are not queried
REPLY_TOKENS_MAX = 32_000  # per reply, unless a model's settings say more: all requested tokens are reserved
FAMILIES_CACHED_MAX = 512
BRAVE_KEY_VARIABLE = "BRAVE_API_KEY"  # not a model key: used by the search tools


class Provider(Struct, frozen=True, kw_only=True):
    """A built-in provider. If `key_variables` is empty, the provider is the owner's own server and needs no key."""

    format: WireFormat = WireFormat.OPENAI_CHAT
    url: str
    key_variables: tuple[str, ...] = ()
    default_model: str = ""  # for an agent with this provider and no model, until its retirement
    is_local: bool = False  # runs on the owner's machine: no cost per token


class ModelFamily(Struct, frozen=True):
    """The facts shared by all models whose name matches a pattern.

    If `efforts` is None, the supported efforts are unknown, and any requested effort is sent.
    """

    pattern: str
    window_tokens: int
    output_tokens_max: int = REPLY_TOKENS_MAX
    vision: bool = False
    tools: bool = True
    efforts: tuple[str, ...] | None = None
    quirks: frozenset[ProviderQuirk] = frozenset()


IN_PROCESS_PROVIDERS = frozenset({"local", "bridge"})  # files and libraries on this machine, not servers
IN_PROCESS_WINDOW_TOKENS = 16_384

BUILT_IN_PROVIDERS: Mapping[str, Provider] = {
    "local": Provider(url="", is_local=True),
    "bridge": Provider(url=""),
    "anthropic": Provider(
        format=WireFormat.ANTHROPIC,
        url="https://api.anthropic.com/v1",
        key_variables=("ANTHROPIC_API_KEY",),
        default_model="claude-opus-4-5",
    ),
    "openai": Provider(
        format=WireFormat.OPENAI_RESPONSES,
        url="https://api.openai.com/v1",
        key_variables=("OPENAI_API_KEY",),
        default_model="gpt-6.1-sol",
    ),
    "google": Provider(
        format=WireFormat.GOOGLE,
        url="https://generativelanguage.googleapis.com/v1beta",
        key_variables=("GOOGLE_API_KEY", "GEMINI_API_KEY"),
        default_model="gemini-3.8-flash",
    ),
    "openrouter": Provider(url="https://openrouter.ai/api/v1", key_variables=("OPENROUTER_API_KEY",)),
    "groq": Provider(
        url="https://api.groq.com/openai/v1",
        key_variables=("GROQ_API_KEY",),
    ),
    "deepseek": Provider(
        url="https://api.deepseek.com/v1",
        key_variables=("DEEPSEEK_API_KEY",),
        default_model="deepseek-flash",
    ),
    "mistral": Provider(
        url="https://api.mistral.ai/v1",
        key_variables=("MISTRAL_API_KEY",),
        default_model="mistral-large-latest",
    ),
    "together": Provider(url="https://api.together.xyz/v1", key_variables=("TOGETHER_API_KEY",)),
    "fireworks": Provider(url="https://api.fireworks.ai/inference/v1", key_variables=("FIREWORKS_API_KEY",)),
    "cerebras": Provider(
        url="https://api.cerebras.ai/v1",
        key_variables=("CEREBRAS_API_KEY",),
    ),
    "xai": Provider(url="https://api.x.ai/v1", key_variables=("XAI_API_KEY",), default_model="grok-4.7"),
    "moonshot": Provider(
        url="https://api.moonshot.ai/v1",
        key_variables=("MOONSHOT_API_KEY",),
    ),
    "zai": Provider(
        url="https://api.z.ai/api/paas/v4",
        key_variables=("ZAI_API_KEY", "Z_AI_API_KEY"),
    ),
    "ollama": Provider(url="http://127.0.0.1:11434/v1", is_local=True),
    "lmstudio": Provider(url="http://127.0.0.1:1234/v1", is_local=True),
    "vllm": Provider(url="http://127.0.0.1:8000/v1", is_local=True),
}

# The providers whose key in the environment decides the default model, in this order.
DEFAULT_PROVIDER_ORDER = ("anthropic", "openai", "google")

# The models offered for choice if there is a key. Others can be used too.
OFFERED_MODELS: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5", "claude-opus-4-5"),
    "openai": ("gpt-6.1-sol", "gpt-6.1-terra", "gpt-6-luna", "gpt-6-astra"),
    "google": ("gemini-3.8-flash", "gemini-4-argon", "gemini-3.5-flash-lite"),
    "deepseek": ("deepseek-flash", "deepseek-v4-pro"),
    "mistral": ("mistral-large-latest", "mistral-medium-latest", "mistral-small-latest"),
    "xai": ("grok-4.7", "grok-4.3"),
}

_NONE_TO_XHIGH = ("none", "low", "medium", "high", "xhigh")
_LOW_TO_XHIGH = ("low", "medium", "high", "xhigh")
_LOW_TO_HIGH = ("low", "medium", "high")
_NONE_TO_HIGH = ("none", "low", "medium", "high")
_NO_EFFORTS: tuple[str, ...] = ()

_ADAPTIVE = frozenset({ProviderQuirk.ADAPTIVE})
_BY_LEVEL = frozenset({ProviderQuirk.THINKING_LEVEL})

# Window, maximum reply, capabilities. The first pattern that matches the beginning of a name applies.
FAMILIES: tuple[ModelFamily, ...] = (
    ModelFamily(r"claude-[a-z]+-4[.-]6", 1_000_000, vision=True, efforts=_NONE_TO_HIGH, quirks=_ADAPTIVE),
    ModelFamily(r"claude-[a-z]+-4[.-][7-9]", 1_000_000, vision=True, efforts=_NONE_TO_XHIGH, quirks=_ADAPTIVE),
    ModelFamily(r"claude-(fable|mythos)-\d", 1_000_000, vision=True, efforts=_LOW_TO_XHIGH, quirks=_ADAPTIVE),
    ModelFamily(r"claude-(opus|sonnet)-5[.-]5", 1_000_000, vision=True, efforts=_LOW_TO_XHIGH, quirks=_ADAPTIVE),
    ModelFamily(r"claude-[a-z]+-[5-9]", 1_000_000, vision=True, efforts=_NONE_TO_XHIGH, quirks=_ADAPTIVE),
    ModelFamily(r"claude-([a-z]+-4|3[.-]7)", 200_000, vision=True, efforts=_NONE_TO_XHIGH),
    ModelFamily(r"claude-3[.-]5", 200_000, 8_192, vision=True, efforts=_NO_EFFORTS),
    ModelFamily(r"claude-3", 200_000, 4_096, vision=True, efforts=_NO_EFFORTS),
    ModelFamily(r"gpt-6\.1-sol|gpt-6-astra", 1_000_000, vision=True, efforts=_LOW_TO_XHIGH),
    ModelFamily(r"gpt-(5\.[45](?!-mini|-nano)|5\.[6-9]|[6-9])", 1_000_000, vision=True, efforts=_NONE_TO_XHIGH),
    ModelFamily(r"gpt-5(\.\d)?-chat", 128_000, 16_384, vision=True, efforts=_NO_EFFORTS),
    ModelFamily(r"gpt-5(\.\d)?-pro", 400_000, vision=True, efforts=("medium", "high", "xhigh")),
    ModelFamily(r"gpt-5\.[2-9]|gpt-5\.1-codex-max", 400_000, vision=True, efforts=_NONE_TO_XHIGH),
    ModelFamily(r"gpt-5\.1", 400_000, vision=True, efforts=_NONE_TO_HIGH),
    ModelFamily(r"gpt-5", 400_000, vision=True, efforts=_LOW_TO_HIGH),
    ModelFamily(r"o1-mini|o1-preview", 128_000, tools=False, efforts=_NO_EFFORTS),
    ModelFamily(r"o3-mini", 200_000, efforts=_LOW_TO_HIGH),
    ModelFamily(r"o[134]", 200_000, vision=True, efforts=_LOW_TO_HIGH),
    ModelFamily(r"gpt-4\.1", 1_000_000, vision=True, efforts=_NO_EFFORTS),
    ModelFamily(r"(chat)?gpt-4o", 128_000, 16_384, vision=True, efforts=_NO_EFFORTS),
    ModelFamily(r"gpt-4-(turbo|vision)", 128_000, 4_096, vision=True, efforts=_NO_EFFORTS),
    ModelFamily(r"gpt-4", 8_192, 4_096, efforts=_NO_EFFORTS),
    ModelFamily(r"gpt-3\.5", 16_385, 4_096, efforts=_NO_EFFORTS),
    ModelFamily(r"gpt-oss", 131_072, efforts=_LOW_TO_HIGH),
    ModelFamily(r"gemini-3\.[7-9]-flash(?!-lite)", 1_000_000, vision=True, efforts=_LOW_TO_HIGH, quirks=_BY_LEVEL),
    ModelFamily(r"gemini-4", 1_000_000, 32_768, vision=True, efforts=_LOW_TO_HIGH, quirks=_BY_LEVEL),
    ModelFamily(r"gemini-3(\.\d)?-pro", 1_000_000, vision=True, efforts=_LOW_TO_HIGH, quirks=_BY_LEVEL),
    ModelFamily(r"gemini-[3-9]", 1_000_000, vision=True, efforts=_NONE_TO_HIGH, quirks=_BY_LEVEL),
    ModelFamily(r"gemini-2\.5-pro", 1_048_576, vision=True, efforts=_LOW_TO_XHIGH),
    ModelFamily(r"gemini-2\.5", 1_048_576, vision=True, efforts=_NONE_TO_XHIGH),
    ModelFamily(r"gemini-2", 1_048_576, 8_192, vision=True, efforts=_NO_EFFORTS),
    ModelFamily(r"gemini-1\.5-pro", 2_000_000, 8_192, vision=True, efforts=_NO_EFFORTS),
    ModelFamily(r"gemini-1\.5", 1_000_000, 8_192, vision=True, efforts=_NO_EFFORTS),
    ModelFamily(r"gemma-3", 131_072, 8_192, vision=True),
    ModelFamily(r"grok-4(\.\d|-1)?-fast|grok-4\.[23]", 1_000_000, vision=True),
    ModelFamily(r"grok-4\.[56]", 500_000, vision=True, efforts=_LOW_TO_HIGH),
    ModelFamily(r"grok-4\.[7-9]", 500_000, vision=True, efforts=_LOW_TO_XHIGH),
    ModelFamily(r"grok-4", 256_000, vision=True),
    ModelFamily(r"grok-3-mini", 131_072, efforts=("low", "high")),
    ModelFamily(r"grok-(3|code)", 131_072),
    ModelFamily(r"deepseek-flash", 1_000_000, efforts=_LOW_TO_XHIGH),
    ModelFamily(r"deepseek-v4", 1_000_000),
    ModelFamily(r"deepseek", 128_000, 8_192),
    ModelFamily(r"(mistral-(large|medium|small)|magistral|devstral|pixtral|ministral)", 128_000, vision=True),
    ModelFamily(r"codestral", 256_000),
    ModelFamily(r"(meta-)?llama-?4", 1_000_000, 8_192, vision=True),
    ModelFamily(r"(meta-)?llama-?3\.[123]", 131_072, 8_192),
    ModelFamily(r"(meta-)?llama-?3", 8_192, 4_096),
    ModelFamily(r"kimi-k2|qwen3-coder", 262_144),
    ModelFamily(r"qwen-?3", 131_072, 8_192),
    ModelFamily(r"qwen-?2\.5", 32_768, 8_192),
    ModelFamily(r"glm-(4\.[6-9]|[5-9])", 200_000),
    ModelFamily(r"smollm2", 8_192, 2_048),
)


@functools.lru_cache(maxsize=FAMILIES_CACHED_MAX)
def find_family(model: str) -> ModelFamily | None:
    """Return the family of a model, by its name without a reseller's prefix."""
    name = model.rpartition("/")[2].casefold()
    return next((family for family in FAMILIES if re.match(family.pattern, name)), None)
