"""What a heartbeat asks and what of its answer is said: by words alone, without a house."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from retinue.domain import address
from retinue.domain.errors import Invalid
from retinue.domain.heartbeat import (
    CHECKLIST_PROMPT,
    DEFAULT_ACK_CHARS_MAX,
    OK_TOKEN,
    PROMPT_WITHOUT_CHECKLIST,
    Heartbeat,
    HeartbeatTask,
    HeartbeatVisibility,
    alert_text,
    build_prompt,
    derive_task_id,
    format_tasks,
    is_active,
    is_checklist_empty,
    parse_minute_of_day,
    remove_token,
    validate_task_id,
)

LONG = "The disk of the mail server is nearly full. " * 10
assert len(LONG) > DEFAULT_ACK_CHARS_MAX


# --- the token ---


@pytest.mark.spec("C77")
@pytest.mark.parametrize(
    "said",
    [
        "HEARTBEAT_OK",
        "  HEARTBEAT_OK\n",
        "HEARTBEAT_OK.",
        "HEARTBEAT_OK!!",
        "**HEARTBEAT_OK**",
        "__HEARTBEAT_OK__",
        "_HEARTBEAT_OK_",
        "`HEARTBEAT_OK`",
        "```\nHEARTBEAT_OK\n```",
        "~~HEARTBEAT_OK~~",
        "**_HEARTBEAT_OK_**",
        "<b>HEARTBEAT_OK</b>",
        "<p><b>HEARTBEAT_OK</b></p>",
        '<span class="ok">HEARTBEAT_OK</span>',
        "<b>HEARTBEAT_OK",
        "&nbsp;HEARTBEAT_OK&nbsp;",
        '"HEARTBEAT_OK"',
        "(HEARTBEAT_OK)",
        "- HEARTBEAT_OK",
        "> HEARTBEAT_OK",
        "# HEARTBEAT_OK",
        "HEARTBEAT_OK HEARTBEAT_OK",
        "HEARTBEAT_OK\n\nHEARTBEAT_OK",
        "",
    ],
)
def test_a_token_in_whatever_dress_is_an_acknowledgement_and_nothing_else(said: str) -> None:
    assert alert_text(said) == ""
    assert remove_token(said) == ""


@pytest.mark.spec("C77")
@pytest.mark.parametrize(
    ("said", "left"),
    [
        (f"HEARTBEAT_OK {LONG}", LONG.strip()),
        (f"{LONG} HEARTBEAT_OK", LONG.strip()),
        (f"{LONG}\n\nHEARTBEAT_OK.", LONG.strip()),
        (f"HEARTBEAT_OK {LONG} HEARTBEAT_OK", LONG.strip()),
        (f"**HEARTBEAT_OK**\n\n**Disk:** {LONG}", f"**Disk:** {LONG.strip()}"),
        (f"HEARTBEAT_OK\n\n**Disk:** {LONG}", f"**Disk:** {LONG.strip()}"),
        (f"HEARTBEAT_OK\n- {LONG}", f"- {LONG.strip()}"),
        (f"**HEARTBEAT_OK: {LONG.strip()}**", LONG.strip()),
        (f"<p>HEARTBEAT_OK {LONG.strip()}</p>", LONG.strip()),
        (f"<i>{LONG.strip()} HEARTBEAT_OK</i>", LONG.strip()),
        (f"{LONG.strip()}\n- HEARTBEAT_OK", LONG.strip()),
        (f"{LONG.strip()} (HEARTBEAT_OK)", LONG.strip()),
        (f"**Disk.** {LONG.strip()} **HEARTBEAT_OK**", f"**Disk.** {LONG.strip()}"),
    ],
)
def test_a_token_is_taken_from_either_end_of_what_is_told_and_its_markup_with_it(said: str, left: str) -> None:
    assert alert_text(said) == left


@pytest.mark.spec("C77")
def test_up_to_300_characters_beside_the_token_are_dropped_and_one_more_is_told() -> None:
    assert alert_text(f"HEARTBEAT_OK {'x' * 300}") == ""
    assert alert_text(f"{'x' * 300} HEARTBEAT_OK") == ""
    assert alert_text(f"HEARTBEAT_OK {'x' * 301}") == "x" * 301
    assert alert_text("HEARTBEAT_OK y", ack_chars_max=0) == "y"
    assert alert_text("x" * 10) == "x" * 10  # without the token it is no acknowledgement, however short


@pytest.mark.spec("C77")
@pytest.mark.parametrize(
    "said",
    [
        "Nothing but good news.",
        "I would say HEARTBEAT_OK if the disk were not full.",
        "HEARTBEAT_OKAY is not the word",
        "MY_HEARTBEAT_OK",
        "the setting X_HEARTBEAT_OK",
        "HEARTBEAT_OK_2 is a variable",
        "heartbeat_ok",
    ],
)
def test_what_does_not_begin_or_end_with_the_token_stays_as_it_is(said: str) -> None:
    assert alert_text(said) == said
    assert remove_token(said) == said


_words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=400).filter(
    lambda text: "HEARTBEAT" not in text and "&nbsp" not in text.lower()
)
_dress = st.sampled_from([("", ""), ("**", "**"), ("<b>", "</b>"), ("`", "`"), ("_", "_"), ("<p><i>", "</i></p>")])


@pytest.mark.spec("C77")
@given(words=_words, dress=_dress, first=st.booleans())
def test_whatever_stands_beside_a_dressed_token_is_dropped_if_short_and_kept_if_long(
    words: str, dress: tuple[str, str], first: bool
) -> None:
    token = f"{dress[0]}{OK_TOKEN}{dress[1]}"
    said = f"{token}\n\n{words}" if first else f"{words}\n\n{token}"
    left = remove_token(said)
    assert OK_TOKEN not in left
    assert left in words
    assert remove_token(left) == left
    assert alert_text(said) == (left if len(left) > DEFAULT_ACK_CHARS_MAX else "")


@given(words=_words)
def test_words_without_the_token_are_never_touched(words: str) -> None:
    assert alert_text(words) == words.strip()


@given(st.text(alphabet=f"*_`~<>/b()-# \n{OK_TOKEN}", max_size=200), st.booleans())
def test_taking_the_token_off_always_comes_to_an_end_and_adds_nothing(noise: str, doubled: bool) -> None:
    said = noise.replace("HE", OK_TOKEN) * (2 if doubled else 1)
    left = remove_token(said)
    assert len(left) <= len(said)
    assert remove_token(left) == left


def test_a_hostile_answer_takes_no_time() -> None:
    for said in (
        "*" * 250_000 + OK_TOKEN,
        OK_TOKEN + "<" * 250_000,
        f"{OK_TOKEN} " * 20_000,
        "(" * 100_000 + OK_TOKEN + ")" * 9,
    ):
        remove_token(said)  # would take minutes if anything here grew faster than the text


# --- the checklist ---


@pytest.mark.spec("C76")
@pytest.mark.parametrize(
    "checklist",
    [
        "",
        "\n \n",
        "# Checklist\n\n## Mornings\n",
        "#",
        "- \n* [ ]\n+ [x]\n-\n1.\n2) [ ]",
        "<!-- nothing yet -->\n# Later",
        "<!-- one\n- look at the mail\n-->",
        "# A\n\n- [ ]\n<!-- open to the end\n- tidy",
    ],
)
def test_headings_items_without_a_word_and_comments_are_an_empty_checklist(checklist: str) -> None:
    assert is_checklist_empty(checklist)


@pytest.mark.spec("C76")
@pytest.mark.parametrize(
    "checklist", ["Look at the mail.", "- [ ] mail", "#todo now", "# A\n- x", "<!-- a --> b", "-x", "1. y", "---\nz"]
)
def test_one_word_on_it_is_enough(checklist: str) -> None:
    assert not is_checklist_empty(checklist)


@pytest.mark.spec("D45")
def test_one_task_is_its_own_words_and_several_are_numbered_sorted_and_carry_their_ids() -> None:
    plants = HeartbeatTask(id="plants", title="Water the plants", text="Look whether they are dry.\n\nIf so, say it.")
    inbox = HeartbeatTask(id="inbox", title="an inbox", text="Look.")
    assert format_tasks([plants]) == plants.text
    made = format_tasks([plants, inbox])
    assert made == format_tasks([inbox, plants])
    assert made.startswith("# Heartbeat run\n\n2 tasks are due.")
    assert made.index("## 1. an inbox\n\nid: inbox\n\nLook.") < made.index("## 2. Water the plants\n\nid: plants\n\n")
    assert made.endswith(plants.text)


@pytest.mark.spec("D45")
def test_the_prompt_is_what_is_due_and_nothing_that_is_not() -> None:
    task = HeartbeatTask(id="a", title="A", text="Do a.")
    assert build_prompt("", "", [task]) == "Do a."
    assert build_prompt("", "- mail", []) == f"{CHECKLIST_PROMPT}\n\n# HEARTBEAT.md\n\n- mail"
    assert build_prompt("Be brief.", "- mail", [task]) == "Be brief.\n\n# HEARTBEAT.md\n\n- mail\n\nDo a."
    assert build_prompt("", "", []) == PROMPT_WITHOUT_CHECKLIST
    assert all(OK_TOKEN in words for words in (CHECKLIST_PROMPT, PROMPT_WITHOUT_CHECKLIST, format_tasks([task, task])))


# --- ids ---


@pytest.mark.spec("D46")
@pytest.mark.parametrize("id_", ["inbox", "check-2", "a.b_c", "A", "x" * 64])
def test_an_id_is_the_name_of_a_file(id_: str) -> None:
    assert validate_task_id(f" {id_} ") == id_


@pytest.mark.spec("D46")
@pytest.mark.parametrize(
    "id_", ["", ".", "..", "../x", "a/b", "/etc/passwd", ".hidden", "a..b", "a.", "x" * 65, "a b", "ä", "a\x00", "a\\b"]
)
def test_an_id_that_could_lead_elsewhere_is_refused(id_: str) -> None:
    with pytest.raises(Invalid) as refused:
        validate_task_id(id_)
    assert refused.value.code == "heartbeat.id_invalid"


@given(st.text(max_size=200))
def test_an_id_made_from_any_title_can_be_one(title: str) -> None:
    assert validate_task_id(derive_task_id(title)) == derive_task_id(title)


# --- active hours ---


def at(text: str, zone: str = "UTC") -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


@pytest.mark.spec("C76")
@pytest.mark.parametrize(
    ("start", "end", "inside", "outside"),
    [
        ("08:00", "22:00", ["08:00", "12:00", "21:59"], ["07:59", "22:00", "00:00", "23:59"]),
        ("22:00", "06:00", ["22:00", "23:59", "00:00", "05:59"], ["06:00", "12:00", "21:59"]),
        ("08:00", "24:00", ["08:00", "23:59"], ["00:00", "07:59"]),
        ("", "06:30", ["00:00", "06:29"], ["06:30", "23:59"]),
        ("20:00", "", ["20:00", "23:59"], ["19:59", "00:00"]),
        ("09:00", "09:00", ["00:00", "09:00", "23:59"], []),
        ("", "", ["00:00", "12:00"], []),
    ],
)
def test_hours_are_by_the_clock_on_the_wall_and_may_go_across_midnight(
    start: str, end: str, inside: list[str], outside: list[str]
) -> None:
    beat = Heartbeat(active_start=start, active_end=end)
    for zone in ("UTC", "Europe/Berlin", "Asia/Kathmandu"):
        for times, is_in in ((inside, True), (outside, False)):
            for time in times:
                moment = at(f"2026-07-01 {time}", zone)
                assert is_active(beat, moment, ZoneInfo(zone)) is is_in, (zone, time)


@pytest.mark.spec("C76")
def test_hours_stay_where_they_are_when_clocks_are_changed() -> None:
    beat, berlin = Heartbeat(active_start="08:00", active_end="09:00"), ZoneInfo("Europe/Berlin")
    assert is_active(beat, datetime(2026, 3, 28, 7, 30, tzinfo=UTC), berlin)
    assert is_active(beat, datetime(2026, 3, 30, 6, 30, tzinfo=UTC), berlin)
    assert not is_active(beat, datetime(2026, 3, 30, 7, 30, tzinfo=UTC), berlin)


@pytest.mark.parametrize("text", ["24:01", "25:00", "8", "8:60", "noon", "-1:00", "08:00:00"])
def test_what_is_no_time_of_day_is_none(text: str) -> None:
    assert parse_minute_of_day(text) is None


# --- what is shown where ---


@pytest.mark.spec("C79")
def test_the_account_has_the_first_word_then_its_channel_then_the_house() -> None:
    house = Heartbeat(shown=HeartbeatVisibility(ok=False, alerts=True, indicator=True))
    work, home, owner = (
        address.parse_address("channel:telegram-work:1"),
        address.parse_address("channel:telegram:2"),
        address.person_address("owner"),
    )
    assert (
        house.visibility_at(work)
        == house.visibility_at(owner)
        == HeartbeatVisibility(ok=False, alerts=True, indicator=True)
    )

    by_channel = replace(
        house, channels={"telegram": HeartbeatVisibility(ok=True), "person": HeartbeatVisibility(indicator=False)}
    )
    assert (
        by_channel.visibility_at(work)
        == by_channel.visibility_at(home)
        == HeartbeatVisibility(ok=True, alerts=True, indicator=True)
    )
    assert by_channel.visibility_at(owner) == HeartbeatVisibility(ok=False, alerts=True, indicator=False)

    by_account = replace(by_channel, accounts={"telegram-work": HeartbeatVisibility(ok=False, alerts=False)})
    assert by_account.visibility_at(work) == HeartbeatVisibility(ok=False, alerts=False, indicator=True)
    assert by_account.visibility_at(home) == HeartbeatVisibility(ok=True, alerts=True, indicator=True)
    assert by_account.visibility_at(None) == house.shown
    assert HeartbeatVisibility(ok=False, alerts=False, indicator=False).is_hidden and not house.shown.is_hidden
