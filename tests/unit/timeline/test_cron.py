"""Cron rules: what is accepted, which slots they have, and when those are due."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.base.errors import BadRequestError
from ister.timeline.cron.rule import (
    CATCH_UP_MS_MIN,
    CATCH_UP_SLOTS_MAX,
    PREVIEW_COUNT_MAX,
    RULE_ID_BYTES_MAX,
    CronRule,
    check_rule_id,
    firing_id,
    parse_rule,
)
from ister.timeline.cron.zone import TIME_MS_MAX

DAY_MS = 86_400_000


def at_ms(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 1000


def slots(expression: str, after: str, count: int, zone: str = "UTC") -> list[str]:
    """Return slots behind a wall time, as wall times with the offset where the zone has one."""
    found = parse_rule(expression, zone).preview(at_ms(after, zone), count)
    return [
        datetime.fromtimestamp(ms / 1000, ZoneInfo(zone))
        .isoformat(" ", "minutes")
        .removesuffix("+00:00")
        for ms in found
    ]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/20 * * * *", ["2026-01-01 00:20", "2026-01-01 00:40"]),
        ("5/25 * * * *", ["2026-01-01 00:05", "2026-01-01 00:30"]),
        ("7 9-11/2 * * *", ["2026-01-01 09:07", "2026-01-01 11:07"]),
        ("0,1 12 * * *", ["2026-01-01 12:00", "2026-01-01 12:01"]),
        ("0 0 1 feb-MAR *", ["2026-02-01 00:00", "2026-03-01 00:00"]),
        ("0 0 * * MON-fri", ["2026-01-02 00:00", "2026-01-05 00:00"]),
        ("0 0 * * SAT-SUN", ["2026-01-03 00:00", "2026-01-04 00:00"]),
        ("0 0 * * 7", ["2026-01-04 00:00", "2026-01-11 00:00"]),
        ("0 0 * * 0", ["2026-01-04 00:00", "2026-01-11 00:00"]),
        ("0 0 L * *", ["2026-01-31 00:00", "2026-02-28 00:00"]),
        ("0 0 LW * *", ["2026-01-30 00:00", "2026-02-27 00:00"]),
        ("0 0 * * FRI#2", ["2026-01-09 00:00", "2026-02-13 00:00"]),
        ("0 0 * * FRI#5", ["2026-01-30 00:00", "2026-05-29 00:00"]),
        ("0 0 * * FRIL", ["2026-01-30 00:00", "2026-02-27 00:00"]),
        ("0 0 * * 0L,7#1", ["2026-01-04 00:00", "2026-01-25 00:00"]),
        ("0 0 31 * *", ["2026-01-31 00:00", "2026-03-31 00:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        ("0 0 29 2 */7", ["2032-02-29 00:00", "2060-02-29 00:00"]),
        ("  0   0\t1 1 * ", ["2027-01-01 00:00", "2028-01-01 00:00"]),
        ("@hourly", ["2026-01-01 01:00", "2026-01-01 02:00"]),
        ("@daily", ["2026-01-02 00:00", "2026-01-03 00:00"]),
        ("@Midnight", ["2026-01-02 00:00", "2026-01-03 00:00"]),
        ("@weekly", ["2026-01-04 00:00", "2026-01-11 00:00"]),
        ("@monthly", ["2026-02-01 00:00", "2026-03-01 00:00"]),
        ("@yearly", ["2027-01-01 00:00", "2028-01-01 00:00"]),
    ],
)
def test_an_expression_means_these_minutes(expression: str, expected: list[str]) -> None:
    assert slots(expression, "2026-01-01 00:00", 2) == expected


def test_days_count_when_either_field_holds_if_none_begins_with_a_star() -> None:
    found = slots("0 0 13 * FRI", "2026-01-01 00:00", 3)

    assert found == ["2026-01-02 00:00", "2026-01-09 00:00", "2026-01-13 00:00"]


def test_days_count_when_both_fields_hold_if_one_begins_with_a_star() -> None:
    found = slots("0 0 */12 * FRI", "2026-01-01 00:00", 3)

    assert found == ["2026-02-13 00:00", "2026-03-13 00:00", "2026-05-01 00:00"]


def test_the_rarest_day_is_found_across_a_century_without_a_leap_year() -> None:
    found = slots("0 0 29 2 */7", "2088-03-01 00:00", 1)

    assert found == ["2128-02-29 00:00"]


@pytest.mark.parametrize(
    ("expression", "field", "example"),
    [
        ("60 * * * *", "minute '60'", "'*/5'"),
        ("*/0 * * * *", "minute '*/0'", "'*/5'"),
        ("*/60 * * * *", "minute '*/60'", "'*/5'"),
        ("1_0 * * * *", "minute '1_0'", "'*/5'"),
        ("\u0661 * * * *", "minute", "'*/5'"),
        (" , * * * *", "minute ','", "'*/5'"),
        ("* 24 * * *", "hour '24'", "'9-17'"),
        ("* 9-5 * * *", "hour '9-5'", "'9-17'"),
        ("* 1/2/3 * * *", "hour '1/2/3'", "'9-17'"),
        ("* * 0 * *", "day of the month '0'", "'1,15'"),
        ("* * 32 * *", "day of the month '32'", "'1,15'"),
        ("* * MON * *", "day of the month 'MON'", "'1,15'"),
        ("* * * 13 *", "month '13'", "'JAN-MAR'"),
        ("* * * L *", "month 'L'", "'JAN-MAR'"),
        ("* * * * 8", "day of the week '8'", "'MON-FRI'"),
        ("* * * * MON#6", "day of the week 'MON#6'", "'MON-FRI'"),
        ("* * * * #1", "day of the week '#1'", "'MON-FRI'"),
        ("* * * * L", "day of the week 'L'", "'MON-FRI'"),
        ("* * * * MON/99999999999999999999", "day of the week", "'MON-FRI'"),
        ("0 0 30 2 *", "day of the month '30'", "'0 0 L * *'"),
        ("0 0 31 4,6 *", "day of the month '31'", "'0 0 L * *'"),
        ("0 0 */20 * 1#2", "day of the month '*/20'", "'0 0 L * *'"),
        ("", "0 fields", "'30 9 * * MON-FRI'"),
        ("* * * *", "4 fields", "'30 9 * * MON-FRI'"),
        ("0 * * * * *", "6 fields", "'30 9 * * MON-FRI'"),
        ("@reboot", "1 fields", "@hourly"),
    ],
)
def test_a_wrong_expression_is_refused_with_the_field_and_an_example(
    expression: str, field: str, example: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_rule(expression)

    assert field in str(caught.value)
    assert example in str(caught.value)


def test_a_long_expression_is_refused_without_looking_at_it() -> None:
    with pytest.raises(BadRequestError, match="up to 256 characters"):
        parse_rule("1," * 100_000 + "1 * * * *")


@pytest.mark.parametrize(
    "zone",
    [
        "",
        "Mars/Olympus",
        "Europe",
        "../../../etc/passwd",
        "/etc/passwd",
        "tzdata.zi",
        "a\0b",
        "\ud800",
        "localtime",
        "right/UTC",
        "x" * 1000,
    ],
)
def test_a_zone_that_is_none_is_refused_with_an_example(zone: str) -> None:
    with pytest.raises(BadRequestError, match="Europe/Vienna"):
        parse_rule("* * * * *", zone)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"jitter_ms": -1}, "jitter"),
        ({"jitter_ms": DAY_MS + 1}, "jitter"),
        ({"catch_up_ms": CATCH_UP_MS_MIN - 1}, "catch-up"),
        ({"catch_up_ms": CATCH_UP_SLOTS_MAX * 60_000 + 1}, "catch-up"),
        ({"overlap": "both"}, "overlap"),
    ],
)
def test_a_setting_out_of_its_bounds_is_refused(settings: dict[str, object], match: str) -> None:
    with pytest.raises(BadRequestError, match=match):
        parse_rule("* * * * *", **settings)  # type: ignore[arg-type]


def test_the_catch_up_window_is_as_long_as_its_slots_are_few() -> None:
    daily = parse_rule("0 3 * * *", catch_up_ms=366 * DAY_MS)

    assert len(daily.preview(0, PREVIEW_COUNT_MAX)) == PREVIEW_COUNT_MAX
    with pytest.raises(BadRequestError, match="catch-up"):
        parse_rule("*/5 * * * *", catch_up_ms=4 * DAY_MS)


def test_an_expression_is_kept_on_one_line() -> None:
    assert parse_rule(" 0 \n 0 * * MON").expression == "0 0 * * MON"


# Clocks that are put forward and back


@pytest.mark.parametrize(
    ("zone", "expression", "after", "expected"),
    [
        # 02:00 to 03:00 is skipped.
        ("Europe/Vienna", "30 * * * *", "2026-03-29 01:00", ["01:30+01:00", "03:30+02:00"]),
        ("Europe/Vienna", "30 2 * * *", "2026-03-28 12:00", ["03:00+02:00", "02:30+02:00"]),
        ("Europe/Vienna", "*/20 2 * * *", "2026-03-28 12:00", ["03:00+02:00", "02:00+02:00"]),
        ("Europe/Vienna", "15 2,3 * * *", "2026-03-28 12:00", ["03:00+02:00", "03:15+02:00"]),
        ("America/New_York", "0 2 * * *", "2026-03-07 12:00", ["03:00-04:00", "02:00-04:00"]),
        # 02:00 to 02:30 is skipped.
        ("Australia/Lord_Howe", "15 * * * *", "2026-10-04 01:00", ["01:15+10:30", "03:15+11:00"]),
        ("Australia/Lord_Howe", "45 * * * *", "2026-10-04 01:00", ["01:45+10:30", "02:45+11:00"]),
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03 12:00", ["02:30+11:00", "02:15+11:00"]),
        ("Australia/Lord_Howe", "* 3 * * *", "2026-10-04 00:00", ["03:00+11:00", "03:01+11:00"]),
        # 00:00 to 01:00 is skipped.
        ("America/Havana", "30 0 * * *", "2026-03-07 12:00", ["01:00-04:00", "00:30-04:00"]),
        ("America/Havana", "0 * * * *", "2026-03-07 22:30", ["23:00-05:00", "01:00-04:00"]),
        # A whole day is skipped.
        ("Pacific/Apia", "0 12 30 12 *", "2011-12-01 00:00", ["00:00+14:00", "12:00+14:00"]),
    ],
)
def test_what_is_skipped_in_spring_fires_when_the_clocks_go_on(
    zone: str, expression: str, after: str, expected: list[str]
) -> None:
    assert [slot.split()[1] for slot in slots(expression, after, 2, zone)] == expected


@pytest.mark.parametrize(
    ("zone", "expression", "after", "expected"),
    [
        # 02:00 to 03:00 is repeated.
        ("Europe/Vienna", "30 * * * *", "2026-10-25 02:00", ["02:30+02:00", "02:30+01:00"]),
        ("Europe/Vienna", "0 */2 * * *", "2026-10-25 01:00", ["02:00+02:00", "02:00+01:00"]),
        ("Europe/Vienna", "30 0-23 * * *", "2026-10-25 02:00", ["02:30+02:00", "02:30+01:00"]),
        ("Europe/Vienna", "30 2 * * *", "2026-10-25 00:00", ["02:30+02:00", "02:30+01:00"]),
        ("America/New_York", "0 * * * *", "2026-11-01 00:30", ["01:00-04:00", "01:00-05:00"]),
        # 01:30 to 02:00 is repeated.
        ("Australia/Lord_Howe", "45 * * * *", "2026-04-05 01:00", ["01:45+11:00", "01:45+10:30"]),
        ("Australia/Lord_Howe", "15 * * * *", "2026-04-05 01:00", ["01:15+11:00", "02:15+10:30"]),
    ],
)
def test_in_the_repeated_hour_of_autumn_a_rule_of_every_hour_fires_twice(
    zone: str, expression: str, after: str, expected: list[str]
) -> None:
    assert [slot.split()[1] for slot in slots(expression, after, 2, zone)] == expected


@pytest.mark.parametrize(
    ("zone", "expression", "change"),
    [
        ("Europe/Vienna", "30 2 * * *", "2026-10-25"),
        ("America/New_York", "30 1 * * *", "2026-11-01"),
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-05"),
    ],
)
def test_in_the_repeated_hour_a_rule_of_a_fixed_hour_fires_once(
    zone: str, expression: str, change: str
) -> None:
    found = slots(expression, f"{change} 00:00", 2, zone)

    assert found[0].startswith(change)
    assert not found[1].startswith(change)


def test_asked_inside_the_repeated_hour_a_slot_never_lies_behind() -> None:
    rule = parse_rule("30 2 * * *", "Europe/Vienna")
    repeated_ms = at_ms("2026-10-25 01:10")

    found_ms = rule.next_slot(repeated_ms)

    assert found_ms == at_ms("2026-10-26 01:30")


# Bounds, jitter and ids


@pytest.mark.parametrize("after_ms", [-1, TIME_MS_MAX + 1, 2**63])
def test_a_time_out_of_bounds_is_refused(after_ms: int) -> None:
    with pytest.raises(BadRequestError, match="a time is 0 to"):
        parse_rule("* * * * *").next_slot(after_ms)


def test_the_last_time_of_all_has_a_slot_behind_it() -> None:
    assert parse_rule("* * * * *", "Pacific/Kiritimati").next_slot(TIME_MS_MAX) is not None


@pytest.mark.parametrize("count", [0, -1, PREVIEW_COUNT_MAX + 1])
def test_a_preview_of_too_many_is_refused(count: int) -> None:
    with pytest.raises(BadRequestError, match="preview"):
        parse_rule("* * * * *").preview(0, count)


def test_a_slot_is_strictly_behind_the_time_it_is_asked_for() -> None:
    rule = parse_rule("0 12 * * *")
    noon_ms = at_ms("2026-01-01 12:00")

    assert rule.next_slot(noon_ms - 1) == noon_ms
    assert rule.next_slot(noon_ms) == noon_ms + DAY_MS
    assert rule.next_slot(noon_ms + 1) == noon_ms + DAY_MS


@given(
    id=st.text(max_size=20),
    expression=st.sampled_from(["* * * * *", "*/5 * * * *", "0 3 * * *", "0,1 0 1 * *"]),
    jitter_ms=st.integers(0, DAY_MS),
    after_ms=st.integers(0, 4 * 10**12),
)
def test_jitter_is_the_same_each_time_and_stays_before_the_next_slot(
    id: str, expression: str, jitter_ms: int, after_ms: int
) -> None:
    rule: CronRule = parse_rule(expression, "Europe/Vienna", jitter_ms=jitter_ms)
    slot_ms, next_ms = rule.preview(after_ms, 2)

    due_ms = rule.due_ms(id, slot_ms)

    assert slot_ms <= due_ms <= slot_ms + jitter_ms
    assert due_ms < next_ms
    assert due_ms == parse_rule(expression, "Europe/Vienna", jitter_ms=jitter_ms).due_ms(
        id, slot_ms
    )


def test_jitter_spreads_rules_over_the_time_it_may_take() -> None:
    rule = parse_rule("0 0 * * *", jitter_ms=9_999)
    tenths = {rule.due_ms(f"rule-{number}", DAY_MS) % DAY_MS // 1000 for number in range(200)}

    assert tenths == set(range(10))


def test_the_message_of_a_slot_is_called_after_rule_and_slot() -> None:
    assert firing_id("report", at_ms("2026-11-16 08:05")) == "report@2026-11-16T08:05:00Z"


def test_the_longest_id_of_a_rule_leaves_room_for_the_slot() -> None:
    check_rule_id("é" * (RULE_ID_BYTES_MAX // 2))
    with pytest.raises(BadRequestError, match="id of a cron rule"):
        check_rule_id("x" * (RULE_ID_BYTES_MAX + 1))


def test_an_empty_id_of_a_rule_is_refused() -> None:
    with pytest.raises(BadRequestError):
        check_rule_id("")


def test_slots_are_the_same_from_wherever_the_clock_is_read() -> None:
    rule = parse_rule("*/7 1-3 * * *", "Europe/Vienna")
    whole = rule.preview(at_ms("2026-10-24 00:00"), 100)

    for number, slot_ms in enumerate(whole[:-1]):
        assert rule.next_slot(slot_ms) == whole[number + 1]
        assert datetime.fromtimestamp(slot_ms / 1000, UTC).second == 0


# Intervals


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("@every 5s", 0, [5_000, 10_000, 15_000]),
        ("@every 5s", 4_999, [5_000, 10_000, 15_000]),
        (" @EVERY  7 ", 7_000, [14_000, 21_000, 28_000]),
        ("@every 10m", 1, [600_000, 1_200_000, 1_800_000]),
    ],
)
def test_slots_of_an_interval_are_its_multiples(
    expression: str, after: int, expected: list[int]
) -> None:
    assert parse_rule(expression, "Europe/Vienna").preview(after, 3) == expected


@pytest.mark.parametrize("span", ["", "0", "0.5", "1.5s", "999ms", "25h", "-1", "x", "5s 5s"])
def test_an_interval_is_a_second_to_a_day_in_whole_seconds(span: str) -> None:
    with pytest.raises(BadRequestError, match="interval of 1 to 86400 whole seconds"):
        parse_rule(f"@every {span}")


def test_an_interval_is_caught_up_with_for_a_thousand_slots_at_most() -> None:
    assert parse_rule("@every 1s").catch_up_ms == 1_000_000
    assert parse_rule("@every 5s").catch_up_ms == 3_600_000
    with pytest.raises(BadRequestError, match="10s to 1000s"):
        parse_rule("@every 1s", catch_up_ms=3_600_000)


def test_messages_of_an_interval_have_ids_of_their_own() -> None:
    ids = {firing_id("a", ms) for ms in parse_rule("@every 1s").preview(0, 100)}

    assert len(ids) == 100
