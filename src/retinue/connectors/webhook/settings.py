"""Settings of a webhook connector: how requests are verified, what they may ask for, and where answers are sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

from retinue.config import validators
from retinue.config.setting_metadata import SettingEffect, setting
from retinue.config.web import check_host_and_port
from retinue.domain.envelope import ENVELOPE_TEXT_BYTES_MAX

TEMPLATE_CHARS_MAX = 20_000
RUN_SECONDS_MAX = 86_400.0


class SignatureScheme(StrEnum):
    """How a request proves that its sender knows the shared secret."""

    STANDARD = "standard"  # webhook-id, webhook-timestamp and webhook-signature, as in Standard Webhooks
    GITHUB = "github"  # X-Hub-Signature-256, over the body alone
    STRIPE = "stripe"  # Stripe-Signature: t=SECONDS,v1=HEX
    TOKEN = "token"  # Authorization: Bearer SECRET


class WebhookKind(StrEnum):
    WAKE = "wake"  # a server message into the conversation that the owner last had with the agent
    AGENT = "agent"  # a message to an agent, in a separate session


class WakeMode(StrEnum):
    NOW = "now"
    NEXT = "next-heartbeat"  # read together with the next thing that the agent reads


def check_template_length(text: str) -> str | None:
    return None if len(text) <= TEMPLATE_CHARS_MAX else f"must have at most {TEMPLATE_CHARS_MAX:,} characters"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookMapping:
    """Converts requests from services that do not use retinue's request format.

    Templates are Jinja templates with the variables `payload` and `headers`.
    """

    path: str = setting("", "Last part of the URL /hooks/CONNECTOR/PATH. Default: the name of the mapping.")
    match: Mapping[str, str] = setting(
        cast("Mapping[str, str]", {}),
        "Conditions for requests: paths such as `payload.action`, each with a glob that the value there must match.",
        effect=SettingEffect.MESSAGE,
    )
    kind: WebhookKind = setting(
        WebhookKind.AGENT,
        "Kind of the message: for a separate session of the agent (`agent`), or for the owner's last session (`wake`).",
        effect=SettingEffect.MESSAGE,
    )
    text: str = setting(
        "",
        "Template of the message's text.",
        effect=SettingEffect.MESSAGE,
        check=check_template_length,
        example="{{ payload.sender.login }} opened {{ payload.issue.title }}",
    )
    name: str = setting(
        "", "Template of the name of the sender.", effect=SettingEffect.MESSAGE, check=check_template_length
    )
    session: str = setting(
        "",
        "Template of the session's name. Requests with the same result share a session. Default: a new session for "
        "each request.",
        effect=SettingEffect.MESSAGE,
        check=check_template_length,
        example="{{ payload.repository.full_name }}",
    )
    agent: str | None = setting(
        None, "Agent that gets the message. Default: the agent of the connector.", check=validators.check_agent_name
    )
    mode: WakeMode = setting(
        WakeMode.NOW,
        "When the agent reads the message: at once (`now`), or together with its next message (`next-heartbeat`).",
    )
    deliver_to: str = setting(
        "", "Address to which the answer is sent, or `none`. Default: the connector's `deliver_to`."
    )
    model: str | None = setting(None, "Model of the run. Default: the model of the agent.")
    thinking: str | None = setting(None, "Reasoning effort of the run. Default: the effort of the agent.")
    timeout_s: float | None = setting(
        None, "Maximum duration of the run, in seconds. Default: the limit of the agent.", least=1, most=RUN_SECONDS_MAX
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """Webhooks: inbound requests to /hooks/CONNECTOR/..., and outbound messages as signed requests."""

    secret_env: str = setting(
        "",
        "Name of the environment variable that contains the shared secret. Without a secret, nothing is received or "
        "sent.",
    )
    secret_file: str = setting("", "File that contains only the shared secret.")
    signature_scheme: SignatureScheme = setting(
        SignatureScheme.STANDARD,
        "How requests prove that they come from you: signed as in Standard Webhooks (`standard`), as by GitHub "
        "(`github`) or Stripe (`stripe`), or with the secret as a bearer token (`token`).",
    )
    agent: str | None = setting(
        None,
        "Agent that gets the message if a request names no agent. Default: the default agent of the server.",
        check=validators.check_agent_name,
    )
    agents: tuple[str, ...] = setting(
        (),
        "Agents that a request may name, as globs. Default: only the agent set in `agent`.",
        effect=SettingEffect.MESSAGE,
        example="ada",
    )
    kinds: tuple[WebhookKind, ...] = setting(
        (WebhookKind.WAKE, WebhookKind.AGENT),
        "Which paths accept requests: /wake (`wake`) and /agent (`agent`). This does not limit the paths of mappings.",
        effect=SettingEffect.MESSAGE,
    )
    mappings: Mapping[str, WebhookMapping] = field(default_factory=dict[str, WebhookMapping])
    deliver_to: str = setting(
        "",
        "Address to which answers are sent, or `none`. Default: `url`, or the owner if `url` is not set.",
        effect=SettingEffect.MESSAGE,
        example="channel:telegram:42",
    )
    deliver_to_allow: tuple[str, ...] = setting(
        (),
        "Addresses that a request may choose for its answer, as globs. Default: none.",
        effect=SettingEffect.MESSAGE,
        example="channel:telegram:*",
    )
    trusted: bool = setting(
        False,
        "Whether the text of requests gets the trust level `private` instead of `untrusted`. If so, anyone who "
        "can put text into a request can instruct your agents.",
        effect=SettingEffect.MESSAGE,
    )
    body_bytes_max: int = setting(
        ENVELOPE_TEXT_BYTES_MAX,
        "Maximum size of the body of an inbound request, in bytes.",
        effect=SettingEffect.MESSAGE,
        least=64,
        most=ENVELOPE_TEXT_BYTES_MAX,
    )
    requests_per_minute: int = setting(
        60,
        "Maximum number of inbound requests to this connector per minute, from all senders together.",
        effect=SettingEffect.MESSAGE,
        least=1,
        most=100_000,
    )
    url: str | None = setting(
        None,
        "URL to which messages for channel:CONNECTOR:CHANNEL are sent, as signed POST requests. Default: none are "
        "sent.",
        check=validators.check_public_url,
        example="https://example.com/from-retinue",
    )
    private_hosts: tuple[str, ...] = setting(
        (),
        "Hosts, as HOST:PORT, that the connector may reach even if they are in your own network or use a port other "
        "than 80 and 443.",
        check=check_host_and_port,
        example="127.0.0.1:9000",
    )
    timeout_s: float = setting(
        10.0, "Maximum time to wait for an answer to a request to `url`, in seconds.", least=0.1, most=120
    )
