"""Errors for input that a policy refuses: webhooks, questionnaires and command rules."""

from __future__ import annotations

from retinue.domain.errors import Invalid


class WebhookKeyMissing(Invalid):
    """Webhooks cannot be sent, because no signing key is set."""

    code = "webhook.no_key"

    def __init__(self) -> None:
        super().__init__(
            "this server sends no webhooks",
            because="the key for signing webhooks is not set",
            try_this="set `webhook_secret` in [external]",
        )


class WebhookInvalid(Invalid):
    """The URL or a header of a webhook is invalid."""

    code = "webhook.invalid"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "invalid webhook",
            because=because,
            try_this='write a webhook such as {"url": "https://example.com/done", '
            '"headers": {"Authorization": "Bearer ..."}}',
        )


class QuestionnaireInvalid(Invalid):
    """A questionnaire has an invalid part or exceeds a limit. `part` is the title, the fields or one field."""

    code = "questionnaire.invalid"

    def __init__(self, part: str, *, because: str) -> None:
        super().__init__(f"invalid questionnaire: {part}", because=because, try_this="correct this part, and ask again")


class CommandRuleInvalid(Invalid):
    """A rule of the command allowlist is invalid."""

    code = "command.rule_invalid"

    def __init__(self, rule: str, *, because: str) -> None:
        super().__init__(
            f"invalid command rule: {rule[:200]!r}",
            because=because,
            try_this="write a rule such as git status, ls * or /opt/tools/report *",
        )
