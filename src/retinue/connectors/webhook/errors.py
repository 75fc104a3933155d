"""Errors of webhook requests and of mappings for them: one class for each code."""

from __future__ import annotations

from retinue.domain.errors import Invalid, NotAllowed, NotFound

VALUE_SHOWN_CHARS = 200
REASON_SHOWN_CHARS = 300


class WebhookTemplateInvalid(Invalid):
    """A template in the settings of a webhook connector is invalid."""

    code = "webhook.template_invalid"

    def __init__(self, connector: str, mapping: str, key: str, *, because: str) -> None:
        super().__init__(
            f"invalid template connectors.{connector}.mappings.{mapping}.{key}",
            because=because,
            try_this="correct it in the settings",
        )


class WebhookTemplateFailed(Invalid):
    """A template could not be rendered with the data of a webhook request."""

    code = "webhook.template_failed"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "a template could not be rendered with the data of this request",
            because=because,
            try_this="correct the mapping in the settings of this connector",
        )


class WebhookPathNotFound(NotFound):
    """The path of the request is neither that of a mapping nor one of the `kinds` of the webhook connector."""

    code = "webhook.path_not_found"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"no webhook path {path[:VALUE_SHOWN_CHARS]!r}",
            because="this connector has no mapping with this path, and its `kinds` do not contain it",
            try_this="check the settings of this connector: retinue connector show NAME",
        )


class WebhookTextMissing(Invalid):
    """The request has no text for the agent."""

    code = "webhook.empty"

    def __init__(self) -> None:
        super().__init__(
            "the request has no text",
            because="`text`, `message` or the template of the mapping is empty",
            try_this="put text into `text` or `message`; for a mapping, into its template",
        )


class WebhookAgentNotAllowed(NotAllowed):
    """The request names an agent that it may not write to."""

    code = "webhook.agent_not_allowed"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"this connector cannot send to the agent {agent[:VALUE_SHOWN_CHARS]!r}",
            because="`agents` of the connector does not list it",
            try_this="leave out `agentId`, or ask the owner to add the agent to `agents`",
        )


class WebhookSessionNotAllowed(NotAllowed):
    """The request names a session that does not belong to its connector."""

    code = "webhook.session_not_allowed"

    def __init__(self) -> None:
        super().__init__(
            "this connector cannot use that session",
            because="the session key names a conversation that does not belong to the connector",
            try_this="use hook:NAME, or leave out `sessionKey`",
        )


class WebhookDeliveryNotAllowed(NotAllowed):
    """The request asks to send the answer to an address that is not allowed."""

    code = "webhook.delivery_not_allowed"

    def __init__(self, address: str) -> None:
        super().__init__(
            f"this connector cannot send the answer to {address[:VALUE_SHOWN_CHARS]!r}",
            because="`deliver_to_allow` of the connector does not list it",
            try_this="leave out `channel` and `to`, or ask the owner to add the address to `deliver_to_allow`",
        )


class WebhookRequestInvalid(Invalid):
    """The body of the request is invalid."""

    code = "webhook.invalid_request"

    def __init__(self, because: str) -> None:
        super().__init__(
            "invalid webhook request",
            because=because[:REASON_SHOWN_CHARS],
            try_this="see docs/guides/webhooks.md for the fields of a request",
        )
