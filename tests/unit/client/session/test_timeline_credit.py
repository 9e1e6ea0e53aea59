"""How many messages a consumer of a timeline is sent at once."""

from ister.client.session.timeline_credit import FIRST, PATIENCE_MS, SOON_MS, Credit, is_left


def grown(credit: Credit, now_ms: int = 0) -> Credit:
    """Return a credit whose application has kept up for a while."""
    while credit.level < credit.most:
        credit.on_held(credit.level, now_ms)
        assert credit.on_empty(0, now_ms) > 0
    return credit


def test_who_keeps_up_may_have_twice_as_many_each_time_and_no_more_than_was_asked_for() -> None:
    credit = Credit(11)

    levels = []
    for _ in range(5):
        credit.on_held(credit.level, 0)
        more = credit.on_empty(0, SOON_MS)
        levels.append((more, credit.level))

    assert levels == [(2, 4), (4, 8), (3, 11), (0, 11), (0, 11)]


def test_who_is_full_and_takes_long_has_no_more() -> None:
    credit = Credit(100)
    credit.on_held(FIRST, 0)

    assert credit.on_empty(0, SOON_MS + 1) == 0


def test_who_waits_and_was_never_full_has_no_more() -> None:
    credit = Credit(100)
    credit.on_held(FIRST - 1, 0)

    assert credit.on_empty(0, 1) == 0


def test_being_full_counts_from_when_it_began() -> None:
    credit = Credit(100)
    credit.on_held(FIRST, 0)
    credit.on_held(FIRST, SOON_MS)

    assert credit.on_empty(0, SOON_MS + 1) == 0


def test_who_gives_back_has_so_many_less_and_asks_for_one_when_it_waits_again() -> None:
    credit = grown(Credit(64))
    credit.on_given_back(60)
    assert credit.level == 4

    credit.on_given_back(60)
    assert credit.level == 0
    assert (credit.on_empty(0, 10), credit.level) == (1, 1)


def test_who_is_busy_with_all_it_may_have_and_waits_has_one_more() -> None:
    credit = grown(Credit(64))
    credit.on_given_back(59)

    assert (credit.on_empty(5, 10), credit.level) == (1, 6)


def test_after_a_lost_connection_there_is_room_for_one_at_least() -> None:
    credit = Credit(64)
    credit.on_given_back(64)
    credit.on_lost()

    assert credit.level == 1


def test_a_message_waits_for_some_seconds_or_half_of_its_lease() -> None:
    long, short = 1_000_000, 400

    assert not is_left(PATIENCE_MS, 0, long)
    assert is_left(PATIENCE_MS + 1, 0, long)
    assert not is_left(200, 0, short)
    assert is_left(201, 0, short)
    # One that is not due yet.
    assert not is_left(0, 100, long)
