"""Settings of a webhook connector: how requests are verified, what they may ask for, and where
answers go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

from retinue.config import validators
from retinue.config.setting_metadata import Effect, setting
from retinue.config.web import host_and_port
from retinue.domain.envelope import TEXT_BYTES_MAX

TEMPLATE_CHARS_MAX = 20_000
RUN_SECONDS_MAX = 86_400.0


class Proof(StrEnum):
    """How a request proves that its sender knows the shared secret."""

    STANDARD = "standard"  # webhook-id, webhook-timestamp and webhook-signature, as in Standard Webhooks
    GITHUB = "github"  # X-Hub-Signature-256, over the body alone
    STRIPE = "stripe"  # Stripe-Signature: t=SECONDS,v1=HEX
    TOKEN = "token"  # Authorization: Bearer SECRET


class HookKind(StrEnum):
    WAKE = "wake"  # a server message into the conversation that the owner last had with the agent
    AGENT = "agent"  # a message to an agent, in a separate session


class WakeMode(StrEnum):
    NOW = "now"
    NEXT = "next-heartbeat"  # read together with the next thing that the agent reads


def template(text: str) -> str | None:
    return None if len(text) <= TEMPLATE_CHARS_MAX else f"must have at most {TEMPLATE_CHARS_MAX:,} characters"


@dataclass(frozen=True, slots=True, kw_only=True)
class HookMapping:
    """Converts requests of services that do not know retinue. Templates are Jinja, over `payload`
    and `headers`."""

    path: str = setting("", "The end of the address, /hooks/INSTANCE/PATH. Not set: the mapping's own name.")
    match: Mapping[str, str] = setting(
        cast("Mapping[str, str]", {}),
        "What must be so for it: a place in the request, such as `payload.action`, and a glob for what is there.",
        effect=Effect.MESSAGE,
    )
    kind: HookKind = setting(HookKind.AGENT, "What it becomes: `agent` or `wake`.", effect=Effect.MESSAGE)
    text: str = setting(
        "",
        "A template for the words.",
        effect=Effect.MESSAGE,
        check=template,
        example="{{ payload.sender.login }} opened {{ payload.issue.title }}",
    )
    name: str = setting("", "A template for who it is said to be from.", effect=Effect.MESSAGE, check=template)
    session: str = setting(
        "",
        "A template for the session: requests for which it comes to the same share one. Not set: each has its own.",
        effect=Effect.MESSAGE,
        check=template,
        example="{{ payload.repository.full_name }}",
    )
    agent: str | None = setting(None, "Whom it is for. Not set: as the connector has it.", check=validators.agent_name)
    mode: WakeMode = setting(WakeMode.NOW, "When a `wake` is read: `now` or `next-heartbeat`.")
    deliver: str = setting("", "Where the answer goes: an address, or `none`. Not set: as the connector has it.")
    model: str | None = setting(None, "With which model.")
    thinking: str | None = setting(None, "With how much effort.")
    timeout_s: float | None = setting(None, "How long the run may take.", least=1, most=RUN_SECONDS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """Requests that arrive at /hooks/CONNECTOR/..., and messages that are posted as signed
    requests."""

    secret_env: str = setting(
        "", "Variable with the secret that both sides share. Without one, nothing comes or leaves."
    )
    secret_file: str = setting("", "File with the secret that both sides share.")
    proof: Proof = setting(
        Proof.STANDARD, "How requests prove that they know the secret: `standard`, `github`, `stripe` or `token`."
    )
    agent: str | None = setting(
        None,
        "Whom requests are for that name nobody. Not set: whoever answers where nobody is named.",
        check=validators.agent_name,
    )
    agents: tuple[str, ...] = setting(
        (),
        "Agents that a request may name, as globs. Not set: only the one above.",
        effect=Effect.MESSAGE,
        example="ada",
    )
    kinds: tuple[HookKind, ...] = setting(
        (HookKind.WAKE, HookKind.AGENT),
        "What a request may ask for by itself, at /wake and /agent. Mappings are not bound by it.",
        effect=Effect.MESSAGE,
    )
    mappings: Mapping[str, HookMapping] = field(default_factory=dict[str, HookMapping])
    deliver: str = setting(
        "",
        "Where answers go: an address, or `none`. Not set: to `url`, and where there is none to the owner.",
        effect=Effect.MESSAGE,
        example="channel:telegram:42",
    )
    deliveries: tuple[str, ...] = setting(
        (),
        "Where a request may have its answer sent by its own word: addresses, as globs.",
        effect=Effect.MESSAGE,
        example="channel:telegram:*",
    )
    trusted: bool = setting(
        False,
        "Whether the words are taken for private ones of the house. Whoever can write into what is sent here can then "
        "tell your agents what to do.",
        effect=Effect.MESSAGE,
    )
    body_bytes_max: int = setting(
        TEXT_BYTES_MAX, "The largest body of a request.", effect=Effect.MESSAGE, least=64, most=TEXT_BYTES_MAX
    )
    requests_per_minute: int = setting(
        60, "Requests that are taken in a minute.", effect=Effect.MESSAGE, least=1, most=100_000
    )
    url: str | None = setting(
        None,
        "Where messages to channel:INSTANCE:ROOM are posted, signed. Not set: none leave.",
        check=validators.public_url,
        example="https://example.com/from-the-house",
    )
    private_hosts: tuple[str, ...] = setting(
        (),
        "Hosts of your own network, or other ports than 80 and 443, that messages may go to, as HOST:PORT.",
        check=host_and_port,
        example="127.0.0.1:9000",
    )
    timeout_s: float = setting(10.0, "How long the other side may take to answer.", least=0.1, most=120)
