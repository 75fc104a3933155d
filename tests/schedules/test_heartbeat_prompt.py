"""The text of a heartbeat's prompt and what is delivered of its answer."""

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

LONG_TEXT = "The disk of the mail server is nearly full. " * 10
assert len(LONG_TEXT) > DEFAULT_ACK_CHARS_MAX


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
def test_a_heartbeat_ok_token_in_any_markup_is_only_an_acknowledgement(said: str) -> None:
    assert alert_text(said) == ""
    assert remove_token(said) == ""


@pytest.mark.spec("C77")
@pytest.mark.parametrize(
    ("said", "left"),
    [
        (f"HEARTBEAT_OK {LONG_TEXT}", LONG_TEXT.strip()),
        (f"{LONG_TEXT} HEARTBEAT_OK", LONG_TEXT.strip()),
        (f"{LONG_TEXT}\n\nHEARTBEAT_OK.", LONG_TEXT.strip()),
        (f"HEARTBEAT_OK {LONG_TEXT} HEARTBEAT_OK", LONG_TEXT.strip()),
        (f"**HEARTBEAT_OK**\n\n**Disk:** {LONG_TEXT}", f"**Disk:** {LONG_TEXT.strip()}"),
        (f"HEARTBEAT_OK\n\n**Disk:** {LONG_TEXT}", f"**Disk:** {LONG_TEXT.strip()}"),
        (f"HEARTBEAT_OK\n- {LONG_TEXT}", f"- {LONG_TEXT.strip()}"),
        (f"**HEARTBEAT_OK: {LONG_TEXT.strip()}**", LONG_TEXT.strip()),
        (f"<p>HEARTBEAT_OK {LONG_TEXT.strip()}</p>", LONG_TEXT.strip()),
        (f"<i>{LONG_TEXT.strip()} HEARTBEAT_OK</i>", LONG_TEXT.strip()),
        (f"{LONG_TEXT.strip()}\n- HEARTBEAT_OK", LONG_TEXT.strip()),
        (f"{LONG_TEXT.strip()} (HEARTBEAT_OK)", LONG_TEXT.strip()),
        (f"**Disk.** {LONG_TEXT.strip()} **HEARTBEAT_OK**", f"**Disk.** {LONG_TEXT.strip()}"),
    ],
)
def test_the_ok_token_and_its_markup_are_removed_from_both_ends_of_a_heartbeat_alert(said: str, left: str) -> None:
    assert alert_text(said) == left


@pytest.mark.spec("C77")
def test_up_to_300_characters_beside_the_heartbeat_ok_token_are_dropped_and_more_are_sent() -> None:
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
def test_a_text_that_does_not_start_or_end_with_the_heartbeat_ok_token_is_unchanged(said: str) -> None:
    assert alert_text(said) == said
    assert remove_token(said) == said


_texts_without_token = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=400).filter(
    lambda text: "HEARTBEAT" not in text and "&nbsp" not in text.lower()
)
_token_markup = st.sampled_from(
    [("", ""), ("**", "**"), ("<b>", "</b>"), ("`", "`"), ("_", "_"), ("<p><i>", "</i></p>")]
)


@pytest.mark.spec("C77")
@given(words=_texts_without_token, markup=_token_markup, first=st.booleans())
def test_text_beside_a_heartbeat_ok_token_is_dropped_if_short_and_kept_if_long(
    words: str, markup: tuple[str, str], first: bool
) -> None:
    token = f"{markup[0]}{OK_TOKEN}{markup[1]}"
    said = f"{token}\n\n{words}" if first else f"{words}\n\n{token}"
    left = remove_token(said)
    assert OK_TOKEN not in left
    assert left in words
    assert remove_token(left) == left
    assert alert_text(said) == (left if len(left) > DEFAULT_ACK_CHARS_MAX else "")


@given(words=_texts_without_token)
def test_a_text_without_the_heartbeat_ok_token_is_only_stripped(words: str) -> None:
    assert alert_text(words) == words.strip()


@given(st.text(alphabet=f"*_`~<>/b()-# \n{OK_TOKEN}", max_size=200), st.booleans())
def test_removing_the_heartbeat_ok_token_terminates_and_never_lengthens_the_text(noise: str, doubled: bool) -> None:
    said = noise.replace("HE", OK_TOKEN) * (2 if doubled else 1)
    left = remove_token(said)
    assert len(left) <= len(said)
    assert remove_token(left) == left


def test_removing_the_heartbeat_ok_token_from_a_hostile_answer_is_fast() -> None:
    for said in (
        "*" * 250_000 + OK_TOKEN,
        OK_TOKEN + "<" * 250_000,
        f"{OK_TOKEN} " * 20_000,
        "(" * 100_000 + OK_TOKEN + ")" * 9,
    ):
        remove_token(said)  # takes minutes if the time grows faster than the text


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
def test_a_heartbeat_checklist_of_headings_blank_items_and_comments_is_empty(checklist: str) -> None:
    assert is_checklist_empty(checklist)


@pytest.mark.spec("C76")
@pytest.mark.parametrize(
    "checklist", ["Look at the mail.", "- [ ] mail", "#todo now", "# A\n- x", "<!-- a --> b", "-x", "1. y", "---\nz"]
)
def test_a_heartbeat_checklist_with_one_word_is_not_empty(checklist: str) -> None:
    assert not is_checklist_empty(checklist)


@pytest.mark.spec("D45")
def test_a_prompt_for_one_heartbeat_task_is_its_text_and_for_several_a_sorted_list_with_ids() -> None:
    plants = HeartbeatTask(id="plants", title="Water the plants", text="Look whether they are dry.\n\nIf so, say it.")
    inbox = HeartbeatTask(id="inbox", title="an inbox", text="Look.")
    assert format_tasks([plants]) == plants.text
    made = format_tasks([plants, inbox])
    assert made == format_tasks([inbox, plants])
    assert made.startswith("# Heartbeat run\n\n2 tasks are due.")
    assert made.index("## 1. an inbox\n\nid: inbox\n\nLook.") < made.index("## 2. Water the plants\n\nid: plants\n\n")
    assert made.endswith(plants.text)


@pytest.mark.spec("D45")
def test_the_heartbeat_prompt_contains_only_what_is_due() -> None:
    task = HeartbeatTask(id="a", title="A", text="Do a.")
    assert build_prompt("", "", [task]) == "Do a."
    assert build_prompt("", "- mail", []) == f"{CHECKLIST_PROMPT}\n\n# HEARTBEAT.md\n\n- mail"
    assert build_prompt("Be brief.", "- mail", [task]) == "Be brief.\n\n# HEARTBEAT.md\n\n- mail\n\nDo a."
    assert build_prompt("", "", []) == PROMPT_WITHOUT_CHECKLIST
    assert all(OK_TOKEN in words for words in (CHECKLIST_PROMPT, PROMPT_WITHOUT_CHECKLIST, format_tasks([task, task])))


# --- ids ---


@pytest.mark.spec("D46")
@pytest.mark.parametrize("id_", ["inbox", "check-2", "a.b_c", "A", "x" * 64])
def test_a_file_name_is_a_valid_heartbeat_task_id(id_: str) -> None:
    assert validate_task_id(f" {id_} ") == id_


@pytest.mark.spec("D46")
@pytest.mark.parametrize(
    "id_", ["", ".", "..", "../x", "a/b", "/etc/passwd", ".hidden", "a..b", "a.", "x" * 65, "a b", "ä", "a\x00", "a\\b"]
)
def test_a_heartbeat_task_id_that_is_no_plain_file_name_is_refused(id_: str) -> None:
    with pytest.raises(Invalid) as refused:
        validate_task_id(id_)
    assert refused.value.code == "heartbeat.id_invalid"


@given(st.text(max_size=200))
def test_a_heartbeat_task_id_derived_from_any_title_is_valid(title: str) -> None:
    assert validate_task_id(derive_task_id(title)) == derive_task_id(title)


# --- active hours ---


def utc_time(text: str, zone: str = "UTC") -> datetime:
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
def test_heartbeat_active_hours_are_local_times_and_can_cross_midnight(
    start: str, end: str, inside: list[str], outside: list[str]
) -> None:
    beat = Heartbeat(active_start=start, active_end=end)
    for zone in ("UTC", "Europe/Berlin", "Asia/Kathmandu"):
        for times, is_in in ((inside, True), (outside, False)):
            for time in times:
                moment = utc_time(f"2026-07-01 {time}", zone)
                assert is_active(beat, moment, ZoneInfo(zone)) is is_in, (zone, time)


@pytest.mark.spec("C76")
def test_heartbeat_active_hours_stay_at_local_time_across_daylight_saving_changes() -> None:
    beat, berlin = Heartbeat(active_start="08:00", active_end="09:00"), ZoneInfo("Europe/Berlin")
    assert is_active(beat, datetime(2026, 3, 28, 7, 30, tzinfo=UTC), berlin)
    assert is_active(beat, datetime(2026, 3, 30, 6, 30, tzinfo=UTC), berlin)
    assert not is_active(beat, datetime(2026, 3, 30, 7, 30, tzinfo=UTC), berlin)


@pytest.mark.parametrize("text", ["24:01", "25:00", "8", "8:60", "noon", "-1:00", "08:00:00"])
def test_an_invalid_time_of_day_of_a_heartbeat_is_parsed_as_none(text: str) -> None:
    assert parse_minute_of_day(text) is None


# --- visibility ---


@pytest.mark.spec("C79")
def test_heartbeat_visibility_is_taken_from_the_account_then_the_platform_then_the_default() -> None:
    server = Heartbeat(shown=HeartbeatVisibility(ok=False, alerts=True, indicator=True))
    work, home, owner = (
        address.parse_address("channel:telegram-work:1"),
        address.parse_address("channel:telegram:2"),
        address.person_address("owner"),
    )
    assert (
        server.visibility_at(work)
        == server.visibility_at(owner)
        == HeartbeatVisibility(ok=False, alerts=True, indicator=True)
    )

    by_channel = replace(
        server, channels={"telegram": HeartbeatVisibility(ok=True), "person": HeartbeatVisibility(indicator=False)}
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
    assert by_account.visibility_at(None) == server.shown
    assert HeartbeatVisibility(ok=False, alerts=False, indicator=False).is_hidden and not server.shown.is_hidden
