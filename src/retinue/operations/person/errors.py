"""Errors of the operations on people, tokens, notifications and preferences."""

from __future__ import annotations

from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound, TooLarge
from retinue.domain.shared_errors import shorten_name

# --- people ---


class InvitationInvalid(NotAllowed):
    """The invitation was already used or revoked, or has expired."""

    code = "invitation.invalid"

    def __init__(self) -> None:
        super().__init__(
            "invalid invitation",
            because="it was already used or revoked, or has expired",
            try_this="ask for a new one",
        )


class SecondOwnerNotAllowed(Invalid):
    """A person cannot be invited as a second owner."""

    code = "person.second_owner"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"you cannot invite '{name}' as owner",
            because="a server has one owner",
            try_this=f"invite a member: retinue person invite {name} --role member",
        )


class PersonNameTaken(Conflict):
    """A person has, or had, this name."""

    code = "person.name_taken"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the name '{name}' is taken",
            because="a person has or had this name, and stored envelopes contain it",
            try_this="choose another name",
        )


class PersonForgetUnconfirmed(Invalid):
    """A request to forget a person does not repeat the person's name in `confirm`."""

    code = "person.not_confirmed"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"to forget this person, confirm must be '{name}'",
            because="forgetting a person cannot be undone",
            try_this=f"repeat the name: retinue person forget {name} --confirm {name}",
        )


class OwnerUnchangeable(Invalid):
    """The owner cannot be forgotten, and the role owner cannot be given or taken away."""

    code = "person.is_owner"

    def __init__(self) -> None:
        super().__init__(
            "the owner cannot be forgotten, and the role owner cannot be given or taken away",
            because="a server has one owner, who must not lose their rights by accident",
            try_this="choose another person or role",
        )


# --- tokens ---


class PrincipalNotFound(NotFound):
    """No person or agent that the caller may see has this address."""

    code = "principal.not_found"

    def __init__(self, text: str) -> None:
        super().__init__(
            f"no person or agent has the address {shorten_name(text)}",
            because="it does not exist, or you may not see it",
            try_this="leave out the principal to use your own tokens",
        )


class TokenNotFound(NotFound):
    """No token has an id that begins with this text, or several tokens do."""

    code = "token.not_found"

    def __init__(self, digits: str) -> None:
        super().__init__(
            f"no token has the id {digits[:40]}",
            because="no token that you can see has an id that starts with these digits, or several tokens do",
            try_this="list the tokens: retinue token list",
        )


class TokenExpiryInvalid(Invalid):
    """The requested lifetime of a token is out of range."""

    code = "token.expiry_invalid"

    def __init__(self, days: int, *, days_max: int) -> None:
        super().__init__(
            f"invalid value for expires_in_days: {days}",
            because=f"it must be a number from 1 to {days_max}",
            try_this="leave it out for a token that is valid until it is revoked",
        )


class TooManyTokens(Invalid):
    """A principal has the maximum number of tokens."""

    code = "token.too_many"

    def __init__(self, principal: str, *, count_max: int) -> None:
        super().__init__(
            f"{principal} has too many tokens",
            because=f"the limit is {count_max}",
            try_this="revoke one that is no longer used: retinue token revoke ID",
        )


class SignInNotForAgents(Invalid):
    """An agent requested a sign-in code for a browser. Only people can sign in with a browser."""

    code = "token.not_a_person"

    def __init__(self, caller: str) -> None:
        super().__init__(
            "only people can sign in with a browser",
            because=f"you are {caller}",
            try_this="send your token with each request",
        )


# --- notifications ---


class NotificationRecipientInvalid(Invalid):
    """Only people can be notified."""

    code = "notification.recipient_invalid"

    def __init__(self, recipient: str) -> None:
        super().__init__(
            f"{recipient} cannot be notified",
            because="only people have notifications; agents receive messages",
            try_this="use to=person:NAME",
        )


class NotificationsNotForAgents(Invalid):
    """Only people have notifications."""

    code = "notification.not_a_person"

    def __init__(self, caller: str) -> None:
        super().__init__(
            "only people have notifications",
            because=f"you are {caller}",
            try_this=f"list the envelopes to {caller}: retinue envelope list --to {caller} --status pending",
        )


class NotificationTitleInvalid(Invalid):
    """The title of a notification is empty, too long or not one line."""

    code = "notification.title_invalid"

    def __init__(self, *, chars_max: int) -> None:
        super().__init__(
            "invalid title for a notification",
            because=f"it must be one line of 1 to {chars_max} characters",
            try_this="move the rest into the text",
        )


class NotificationTextInvalid(Invalid):
    """The text of a notification is too long or cannot be stored."""

    code = "notification.text_invalid"

    def __init__(self, *, chars_max: int) -> None:
        super().__init__(
            "invalid text for a notification",
            because=f"it must have at most {chars_max:,} characters, without NUL or lone surrogates",
            try_this="send an envelope for longer text",
        )


class NotificationSelectionInvalid(Invalid):
    """A request selects neither one notification nor all of them, or selects both."""

    code = "notification.selection_invalid"

    def __init__(self) -> None:
        super().__init__(
            "invalid selection of notifications",
            because="exactly one of `id` and `all` must be given",
            try_this="set `id` for one notification, or all=true for all",
        )


class NotificationNotFound(NotFound):
    """The caller has no notification with this id."""

    code = "notification.not_found"

    def __init__(self, id_: str) -> None:
        super().__init__(
            f"you have no notification {id_}",
            because="it was cleared, or belongs to another person",
            try_this="list your notifications: retinue notification list",
        )


class NotificationIdAmbiguous(Conflict):
    """Several notifications have an id that begins with this text."""

    code = "notification.ambiguous"

    def __init__(self, id_: str) -> None:
        super().__init__(
            f"{id_} matches several notifications",
            because="their ids start with the same digits",
            try_this="give more digits of the id",
        )


# --- preferences ---


class PreferencesNotForAgents(Invalid):
    """Only people have preferences."""

    code = "preference.not_a_person"

    def __init__(self, caller: str) -> None:
        super().__init__(
            "only people have preferences",
            because=f"you are {caller}",
            try_this="show the agent's settings: retinue agent show NAME",
        )


class PreferenceKeyInvalid(Invalid):
    """The key of a preference has characters that are not allowed."""

    code = "preference.key_invalid"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"invalid preference key: '{shorten_name(key)}'",
            because="it must have 1 to 64 lowercase letters, digits, dots and hyphens, and start with a letter",
            try_this="use a key such as page.layout",
        )


class PreferenceValueInvalid(Invalid):
    """The value of a preference cannot be stored."""

    code = "preference.value_invalid"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"invalid value for '{key}'",
            because="it contains a lone surrogate, which cannot be stored",
            try_this="send it as Unicode text",
        )


class PreferenceTooLarge(TooLarge):
    """The value of a preference exceeds the limit."""

    code = "preference.too_large"

    def __init__(self, key: str, *, bytes_max: int) -> None:
        super().__init__(
            f"the value of '{key}' is too large",
            because=f"the limit is {bytes_max:,} bytes of JSON",
            try_this="shorten the value, or split it into several preferences",
        )


class TooManyPreferences(TooLarge):
    """A person has the maximum number of preferences."""

    code = "preference.too_many"

    def __init__(self, *, count_max: int) -> None:
        super().__init__(
            "you have too many preferences",
            because=f"the limit is {count_max} for each person",
            try_this="remove one that you no longer need: set it to null",
        )
