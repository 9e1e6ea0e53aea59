"""Messages given back unused: no attempt, and yet none is kept from the dead letters for ever."""

import pytest
from tests.unit.broker.timelines.timelinebench import TOPIC, Client, TimelineBench

from ister.base.errors import TimelineLeaseLostError
from ister.broker.timelines.leasing import unused_returns
from ister.timeline import Changed, Release

LETTERS = f"{TOPIC}-dlq"
MAX_LEASES = 3


@pytest.fixture
def bench() -> TimelineBench:
    return TimelineBench(max_leases=MAX_LEASES)


def give_back(client: Client, name: str, due_ms: int = 0) -> object:
    """Give back a message as the SDK does that was not handed to an application."""
    row = next(row for row in reversed(client.rows) if row.id == name)
    client.working.pop(name, None)
    return client.finish(Release(0, name, "", row.version, due_ms, unused=True))[0]


def test_what_is_due_and_was_not_handed_out_is_no_attempt(bench: TimelineBench) -> None:
    bench.put("a", 0)
    for _ in range(MAX_LEASES):
        client = bench.consume()
        give_back(client, "a")
        client.close()

    client = bench.consume()

    assert [row.leases for row in client.rows] == [1]


def test_a_message_that_is_given_back_unused_again_and_again_becomes_a_dead_letter(
    bench: TimelineBench,
) -> None:
    client = bench.consume(credit=1)
    bench.put("a", 0)
    letters = bench.consume("undertaker", topic=LETTERS)
    assert letters.error is not None
    for _ in range(2 * MAX_LEASES):
        assert isinstance(give_back(client, "a"), Changed)

    assert len(client.rows) == 2 * MAX_LEASES
    assert bench.consume("undertaker", topic=LETTERS).ids == ["a"]


def test_answers_to_questions_that_nobody_asked_do_not_spare_a_message_for_ever(
    bench: TimelineBench,
) -> None:
    client = bench.consume(credit=1)
    bench.put("a", 0)
    assert client.consumer is not None
    for _ in range(5 * MAX_LEASES):
        client.consumer.revoked("a", client.rows[-1].version, False)
        bench.settle()

    assert len(client.rows) == 2 * MAX_LEASES
    assert bench.consume("undertaker", topic=LETTERS).ids == ["a"]


def test_a_message_is_due_when_it_was_whatever_who_gives_it_back_unused_says(
    bench: TimelineBench,
) -> None:
    client = bench.consume()
    bench.put("a", 0)
    due_ms = bench.now_ms

    give_back(client, "a", due_ms + 3_600_000)

    assert [row.due_ms for row in client.rows] == [due_ms, due_ms]


def test_what_is_not_due_yet_is_given_back_as_often_as_anybody_likes(bench: TimelineBench) -> None:
    bench.put("a", 400)
    for _ in range(5 * MAX_LEASES):
        client = bench.consume(prefetch_ms=1_000)
        assert isinstance(give_back(client, "a"), Changed)
        client.close()

    bench.advance(400)

    assert [row.leases for row in bench.consume().rows] == [1]


def test_without_a_limit_of_leases_none_is_counted() -> None:
    bench = TimelineBench(max_leases=0)
    client = bench.consume(credit=1)
    bench.put("a", 0)
    for _ in range(20):
        give_back(client, "a")

    assert client.rows[-1].leases == 1


def test_who_has_no_lease_gives_nothing_back(bench: TimelineBench) -> None:
    client, other = bench.consume("one", credit=1), bench.consume("two", credit=1)
    bench.put("a", 0)
    owner, thief = (client, other) if client.rows else (other, client)
    version = owner.rows[0].version

    (refusal,) = thief.finish(Release(0, "a", "", version, 0, unused=True))
    assert isinstance(refusal, TimelineLeaseLostError)
    (refusal,) = owner.finish(Release(0, "a", "", version - 1, 0, unused=True))
    assert isinstance(refusal, TimelineLeaseLostError)

    assert isinstance(owner.done("a"), Changed)


def test_memory_of_what_was_spared_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unused_returns, "UNUSED_RETURNS_MAX", 2)
    spared = unused_returns.UnusedReturns(times_max=2)

    assert [spared.allow(seq) for seq in (1, 2, 3, 1, 1)] == [True, True, False, True, False]
    spared.forget(1)
    assert [spared.allow(seq) for seq in (3, 2, 1)] == [True, True, False]
