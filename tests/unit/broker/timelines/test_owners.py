"""What owners change, and how messages are taken back from consumers for it."""

import pytest
from tests.unit.broker.timelines.timelinebench import (
    GROUP,
    LEASE_MS,
    TOPIC,
    Client,
    TimelineBench,
)

from ister.base.errors import (
    BadRequestError,
    MessageChangedError,
    MessageExistsError,
    MessageLeasedError,
    MessageNotFoundError,
    NotOwnerError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.timeline import Changed, Delete, Move, Put


@pytest.fixture
def bench() -> TimelineBench:
    return TimelineBench()


@pytest.fixture
def client(bench: TimelineBench) -> Client:
    return bench.consume(prefetch_ms=1_000)


def test_a_moved_message_is_delivered_at_its_new_time_only(bench: TimelineBench) -> None:
    client = bench.consume()
    bench.put("sooner", 5_000)
    bench.put("later", 1_000)

    bench.change(bench.moving("sooner", 500), bench.moving("later", 2_000))

    bench.advance(499)
    assert client.ids == []
    bench.advance(1)
    assert client.ids == ["sooner"]
    bench.advance(1_499)
    assert client.ids == ["sooner"]
    bench.advance(1)
    assert client.ids == ["sooner", "later"]


def test_a_message_moved_into_the_window_from_beyond_it_is_delivered(bench: TimelineBench) -> None:
    client = bench.consume()
    bench.put("a", 30 * 86_400_000)

    bench.change(bench.moving("a", 100))

    bench.advance(100)
    assert client.ids == ["a"]


def test_a_deleted_message_is_never_delivered(bench: TimelineBench) -> None:
    client = bench.consume()
    bench.put("a", 500)

    assert isinstance(bench.change(bench.deleting("a")), Changed)

    bench.advance(10_000)
    assert client.ids == []


def test_changes_that_are_made_together_are_all_or_nothing(bench: TimelineBench) -> None:
    client = bench.consume()
    bench.put("a", 500)

    outcome = bench.change(
        bench.deleting("a"), bench.putting("a", 0), bench.moving("b", 0), atomic=True
    )
    assert isinstance(outcome, MessageNotFoundError)
    assert client.ids == []

    outcomes = bench.change(bench.deleting("a"), bench.putting("a", 100), atomic=True)
    assert len(outcomes) == 2
    bench.advance(100)
    assert client.ids == ["a"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (Put(0, "b", GROUP, 0, b"", b"", 1), BadRequestError),
        (Put(0, "a", GROUP, 0, b""), MessageExistsError),
        (Delete(0, "a", "others"), NotOwnerError),
        (Move(0, "a", GROUP, 0, 999), MessageChangedError),
    ],
)
def test_a_change_that_cannot_be_is_refused_and_the_others_are_made(
    bench: TimelineBench, change: Put | Move | Delete, error: type[Exception]
) -> None:
    bench.put("a", 60_000)

    refused, made = bench.change(change, bench.putting("c", 60_000))
    assert isinstance(refused, error)
    assert isinstance(made, Changed)

    assert isinstance(bench.change(bench.putting("d", 0), change, atomic=True), error)


def test_no_or_too_many_changes_are_refused(bench: TimelineBench) -> None:
    puts = [bench.putting(str(slot), 0) for slot in range(1_001)]

    assert isinstance(bench.change(), BadRequestError)
    assert isinstance(bench.change(*puts), BadRequestError)


def test_a_message_in_work_is_not_changed(bench: TimelineBench) -> None:
    client = bench.consume()
    bench.put("a", 0)

    for change in (bench.deleting("a"), bench.moving("a", 9), bench.updating("a", b"")):
        assert isinstance(bench.change(change), MessageLeasedError)

    assert isinstance(client.done("a"), Changed)


def test_a_message_in_work_is_not_changed_when_the_clock_is_set_back(bench: TimelineBench) -> None:
    client = bench.consume()
    bench.put("a", 0)
    bench.clock.skew_ms = -60_000

    assert isinstance(bench.change(bench.deleting("a")), MessageLeasedError)
    assert client.asked == []


# Messages that were sent ahead of their time


def test_a_message_sent_ahead_is_taken_back_before_it_is_deleted(
    bench: TimelineBench, client: Client
) -> None:
    bench.put("a", 400)
    assert client.ids == ["a"]

    assert isinstance(bench.change(bench.deleting("a")), Changed)

    assert client.asked == [("a", client.rows[0].version)]
    bench.advance(20_000)
    assert client.begun == []


def test_a_message_sent_ahead_is_begun_at_the_time_it_was_moved_to(
    bench: TimelineBench, client: Client
) -> None:
    bench.put("a", 400)

    bench.change(bench.moving("a", 700))

    bench.advance(699)
    assert client.begun == []
    bench.advance(1)
    assert client.begun_ids == ["a"]
    assert client.begun[0][1].leases == 1


def test_a_message_sent_ahead_is_begun_with_what_it_was_updated_to(
    bench: TimelineBench, client: Client
) -> None:
    bench.put("a", 400)

    bench.change(bench.updating("a", b"other"))

    bench.advance(400)
    assert [row.payload for _, row in client.begun] == [b"other"]


def test_owners_need_not_know_that_a_message_was_sent_ahead(
    bench: TimelineBench, client: Client
) -> None:
    version = bench.put("a", 400).version
    assert client.rows[0].version != version

    assert isinstance(bench.change(bench.deleting("a", version)), Changed)


@pytest.mark.parametrize(("group", "version"), [("others", 0), (GROUP, 999)])
def test_nobody_is_asked_for_a_message_whose_change_will_be_refused(
    bench: TimelineBench, client: Client, group: str, version: int
) -> None:
    bench.put("a", 400)

    outcome = bench.change(Delete(0, "a", group, version))

    assert isinstance(outcome, NotOwnerError | MessageChangedError)
    assert client.asked == []
    bench.advance(400)
    assert client.begun_ids == ["a"]


def test_the_owner_is_refused_when_the_application_has_the_message(
    bench: TimelineBench, client: Client
) -> None:
    client.answers = False
    bench.put("a", 400)
    told = bench.begin_change(bench.deleting("a"))
    assert client.consumer is not None

    client.consumer.revoked("a", client.rows[0].version, kept=True)
    bench.settle()

    assert isinstance(told[0], list)
    assert isinstance(told[0][0], MessageLeasedError)


@pytest.mark.parametrize(("in_ms", "wait_ms"), [(400, 400), (2_000, 1_000)])
def test_the_owner_is_refused_when_no_answer_comes_in_time(in_ms: int, wait_ms: int) -> None:
    bench = TimelineBench()
    client = bench.consume(prefetch_ms=5_000)
    client.answers = False
    bench.put("a", in_ms)
    told = bench.begin_change(bench.deleting("a"))

    bench.advance(wait_ms - 1)
    assert told == []
    bench.advance(1)

    assert isinstance(told[0], list)
    assert isinstance(told[0][0], MessageLeasedError)
    bench.advance(in_ms)
    assert client.begun_ids == ["a"]


def test_a_message_let_go_of_too_late_is_delivered_again_in_time() -> None:
    bench = TimelineBench()
    client = bench.consume(prefetch_ms=5_000)
    client.answers = False
    bench.put("a", 2_000)
    bench.begin_change(bench.deleting("a"))
    bench.advance(1_500)

    client.answer("a", client.rows[0].version)
    bench.advance(500)

    assert client.begun_ids == ["a"]
    assert client.ids == ["a", "a"]


def test_what_was_taken_back_for_a_transaction_that_fails_is_delivered_in_time(
    bench: TimelineBench, client: Client
) -> None:
    bench.put("a", 400)

    outcome = bench.change(bench.deleting("a"), bench.deleting("nothing"), atomic=True)

    assert isinstance(outcome, MessageNotFoundError)
    bench.advance(400)
    assert client.begun_ids == ["a"]
    assert client.begun[0][1].leases == 1


def test_a_transaction_over_messages_of_two_consumers_waits_for_both(bench: TimelineBench) -> None:
    clients = [bench.consume(f"worker-{n}", prefetch_ms=1_000) for n in range(2)]
    for client in clients:
        client.answers = False
    bench.put_many(["a", "b"], 400)
    told = bench.begin_change(bench.deleting("a"), bench.deleting("b"), atomic=True)
    bench.settle()

    clients[0].answer(*clients[0].asked[0])
    bench.settle()
    assert told == []
    clients[1].answer(*clients[1].asked[0])
    bench.settle()

    assert isinstance(told[0], list)
    bench.advance(20_000)
    assert [client.begun for client in clients] == [[], []]


def test_two_owners_that_want_one_message_are_both_answered(
    bench: TimelineBench, client: Client
) -> None:
    bench.put("a", 400)

    first = bench.begin_change(bench.deleting("a"))
    second = bench.begin_change(bench.deleting("a"))
    bench.settle()

    assert isinstance(first[0], list)
    assert isinstance(first[0][0], Changed)
    assert isinstance(second[0], list)
    assert isinstance(second[0][0], MessageNotFoundError)
    assert len(client.asked) == 1


def test_a_message_on_its_way_to_a_consumer_is_taken_back_as_well(
    bench: TimelineBench, client: Client
) -> None:
    bench.begin_change(bench.putting("a", 400))
    bench.settle_until(lambda: client.is_awaiting)

    outcome = bench.change(bench.deleting("a"))

    assert isinstance(outcome, Changed)
    assert client.ids == ["a"]
    bench.advance(20_000)
    assert client.begun == []


def test_a_consumer_that_closes_has_let_go_of_what_owners_want(
    bench: TimelineBench, client: Client
) -> None:
    client.answers = False
    bench.put("a", 400)
    told = bench.begin_change(bench.deleting("a"))
    bench.settle()

    client.close()

    assert isinstance(told[0], list)
    assert isinstance(told[0][0], Changed)
    other = bench.consume("other")
    bench.advance(20_000)
    assert other.ids == []


def test_a_consumer_that_is_replaced_may_have_begun_what_owners_want(
    bench: TimelineBench, client: Client
) -> None:
    client.answers = False
    bench.put("a", 400)
    told = bench.begin_change(bench.deleting("a"))
    bench.settle()

    successor = bench.consume(prefetch_ms=1_000)

    assert isinstance(told[0], list)
    assert isinstance(told[0][0], MessageLeasedError)
    bench.advance(400)
    assert successor.begun_ids == ["a"]


def test_a_delete_while_a_successor_is_handed_its_leases_waits_for_that(
    bench: TimelineBench, client: Client
) -> None:
    bench.put("a", 400)
    successor = bench.consume(prefetch_ms=1_000, settle=False)

    outcome = bench.change(bench.deleting("a"))

    assert isinstance(outcome, Changed)
    assert successor.ids == ["a"]
    bench.advance(20_000)
    assert successor.begun == []


def test_owners_that_wait_are_told_when_the_topic_is_deleted(
    bench: TimelineBench, client: Client
) -> None:
    client.answers = False
    bench.put("a", 400)
    told = bench.begin_change(bench.deleting("a"))
    bench.settle()

    bench.delete_topic()

    assert isinstance(told[0], TopicNotFoundError)
    bench.advance(20_000)
    assert len(told) == 1


def test_answers_that_make_no_sense_change_nothing(bench: TimelineBench, client: Client) -> None:
    bench.put("a", 400)
    assert client.consumer is not None

    client.consumer.revoked("nothing", 1, kept=False)
    client.consumer.revoked("a", 12345, kept=False)
    bench.settle()

    bench.advance(400)
    assert client.begun_ids == ["a"]
    assert client.ids == ["a"]


def test_readers_find_messages_by_id_and_by_time(bench: TimelineBench) -> None:
    bench.put_many(["a", "b"], 60_000)
    told: list[object] = []
    start_ms = bench.now_ms

    bench.timelines.count(TOPIC, start_ms, start_ms + 60_001, told.append)
    bench.timelines.page(TOPIC, start_ms, start_ms + 60_001, (-1, 0), 100, told.append)
    bench.timelines.page(TOPIC, 0, 1, (-1, 0), 101, told.append)
    bench.timelines.count("/default/other", 0, 1, told.append)
    bench.settle()

    refused, missing, count, rows = told
    assert isinstance(refused, BadRequestError)
    assert isinstance(missing, TopicNotFoundError)
    assert count == 2
    assert isinstance(rows, list)
    assert [row.id for row in rows] == ["a", "b"]


# Versions that owners know


def test_a_version_outlives_being_sent_ahead_and_given_back(bench: TimelineBench) -> None:
    put = bench.put("a", 400)
    for _ in range(2):
        dead = bench.consume(prefetch_ms=1_000)
        assert dead.ids == ["a"]
        dead.close()

    moved = bench.change(bench.moving("a", 5_000, put.version))

    assert isinstance(moved, Changed)
    refusal = bench.change(bench.moving("a", 5_000, put.version))
    assert isinstance(refusal, MessageChangedError)


def test_a_version_outlives_a_change_that_was_refused_after_it_was_taken_back(
    bench: TimelineBench, client: Client
) -> None:
    put = bench.put("a", 400)
    assert client.ids == ["a"]
    bench.change(bench.deleting("a"), bench.deleting("nobody"), atomic=True)

    assert isinstance(bench.change(bench.deleting("a", put.version)), Changed)


def test_what_was_sent_ahead_is_shown_with_the_version_its_owner_knows(
    bench: TimelineBench, client: Client
) -> None:
    put = bench.put("a", 400)
    assert client.ids == ["a"]

    assert bench.get("a").version == put.version
    assert [row.version for row in bench.page()] == [put.version]
    assert isinstance(bench.change(bench.moving("a", 950, bench.get("a").version)), Changed)


def test_what_was_begun_has_another_version_for_good(bench: TimelineBench, client: Client) -> None:
    put = bench.put("a", 400)
    bench.advance(400)
    assert client.begun_ids == ["a"]
    assert bench.get("a").version == client.working["a"].version > put.version

    client.release("a", bench.now_ms + 5_000)

    refusal = bench.change(bench.deleting("a", put.version))
    assert isinstance(refusal, MessageChangedError)


def test_what_was_begun_has_another_version_also_when_its_lease_is_over(
    bench: TimelineBench,
) -> None:
    client = bench.consume(prefetch_ms=1_000, credit=1)
    put = bench.put("a", 400)
    bench.advance(400)
    assert client.begun_ids == ["a"]

    bench.advance(LEASE_MS)

    refusal = bench.change(bench.moving("a", 5_000, put.version))
    assert isinstance(refusal, MessageChangedError)


# Topics that are no timelines


def test_whoever_takes_another_topic_for_a_timeline_is_told_its_kind() -> None:
    bench = TimelineBench(find_kind={"/default/live": "live"}.get)
    name = "/default/live"

    found = [
        bench.put("a", 0, topic=name),
        bench.get("a", topic=name),
        bench.page(topic=name),
        bench.consume(topic=name).error,
    ]

    assert {type(error) for error in found} == {WrongKindError}
    assert "is a live topic" in str(found[0])
    assert "kind='timeline'" in str(found[0])
    assert isinstance(bench.put("a", 0, topic="/default/nothing"), TopicNotFoundError)


def test_a_topic_without_priorities_says_so_and_which_kind_has_some(bench: TimelineBench) -> None:
    assert "kind 'priority'" in str(bench.put("a", 0, level=3))
