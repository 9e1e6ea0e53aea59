"""Topics that are bound to a schema: what their schema check refuses is not taken."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.broker.fakes import Bench
from tests.unit.broker.streambench import TOPIC, StreamBench

from ister.base import find_partition
from ister.base.errors import BadBatchError, SchemaViolationError
from ister.base.limits import CHECK_BYTES_MAX, CHECK_COUNT_MAX
from ister.broker import SchemaCheck
from ister.codec import Batch, encode

LIVE = "/default/a"


class NoBad:
    """Refuses messages that say that they are bad."""

    def __init__(self, weight: int = 1) -> None:
        self.seen: list[list[bytes]] = []
        self._weight = weight

    def weight(self, batch: Batch) -> int:
        return self._weight

    def check(self, batch: Batch) -> None:
        self.seen.append(list(batch.payloads))
        if b"bad" in batch.payloads:
            raise SchemaViolationError("any", "subject", "it says so itself")


def schema_check_of(bound: dict[str, SchemaCheck]) -> Callable[[str], SchemaCheck | None]:
    """As the registry: a partition has the schema check of its topic."""

    def find(name: str) -> SchemaCheck | None:
        partition = find_partition(name)
        return bound.get(partition[0] if partition else name)

    return find


def streams(bound: dict[str, SchemaCheck], **options: Any) -> StreamBench:
    bench = StreamBench(**options)
    bench.broker.schema_check_of = schema_check_of(bound)
    return bench


def batch_of(*payloads: bytes) -> Batch:
    return Batch(b"".join(encode(payloads, producer=b"p")))


def test_a_live_topic_takes_nothing_that_its_schema_check_refuses() -> None:
    bench = Bench()
    bench.broker.schema_check_of = schema_check_of({LIVE: NoBad()})
    member = bench.consume(LIVE)
    with pytest.raises(SchemaViolationError):
        bench.publish(b"bad")
    bench.publish(b"good")

    assert member.payloads == [b"good"]
    assert bench.topic_report(LIVE).messages_in == 1


def test_a_stream_takes_nothing_that_its_schema_check_refuses() -> None:
    bench = streams({TOPIC: NoBad()})
    bench.create()
    with pytest.raises(SchemaViolationError):
        bench.publish(b"good", b"bad")
    bench.publish(b"good")

    assert [m.payload for m in bench.stored(TOPIC)] == [b"good"]


def test_partitions_have_the_schema_check_of_their_topic() -> None:
    bench = streams({"/default/parts": NoBad()})
    bench.create("/default/parts", partitions=1)
    bench.broker.grow_topic("/default/parts", 2, kind="stream")

    for number in (0, 1):
        with pytest.raises(SchemaViolationError):
            bench.publish(b"bad", topic=f"/default/parts-part-{number}")


def test_a_topic_found_at_the_start_has_its_schema_check() -> None:
    bench = StreamBench()
    bench.create()
    bench.restart("none")
    bench.broker.schema_check_of = schema_check_of({TOPIC: NoBad()})

    with pytest.raises(SchemaViolationError):
        bench.publish(b"bad")


def test_a_topic_that_is_bound_later_is_checked_from_then_on() -> None:
    bound: dict[str, SchemaCheck] = {}
    bench = streams(bound)
    bench.create()
    bench.create("/default/parts", partitions=1)
    bench.publish(b"bad")
    bound[TOPIC] = bound["/default/parts"] = NoBad()
    bench.broker.on_bound(TOPIC)
    bench.broker.on_bound("/default/parts")
    bench.broker.on_bound("/default/not-there")

    with pytest.raises(SchemaViolationError):
        bench.publish(b"bad")
    with pytest.raises(SchemaViolationError):
        bench.publish(b"bad", topic="/default/parts-part-0")
    bound.clear()
    bench.broker.on_bound(TOPIC)
    bench.publish(b"bad")


def test_what_was_stored_before_it_was_bound_is_answered_when_it_is_sent_again() -> None:
    bound: dict[str, SchemaCheck] = {}
    bench = streams(bound)
    bench.create()
    offsets = bench.publish(b"bad", sequence=0)
    bound[TOPIC] = NoBad()
    bench.broker.on_bound(TOPIC)

    assert bench.publish(b"bad", sequence=0) == offsets


def test_a_transaction_with_one_bad_message_does_nothing() -> None:
    bench = streams({TOPIC: NoBad()})
    bench.create()
    bench.create("/default/free")
    transaction = bench.begin()
    bench.stage(transaction, 1, b"bad")
    bench.stage(transaction, 0, b"bad")
    outcome = bench.commit(transaction, [TOPIC, "/default/free"])

    assert isinstance(outcome.error, SchemaViolationError)
    assert bench.topic("/default/free").next_offset == 0
    again = bench.begin("again")
    bench.stage(again, 0, b"good")
    bench.stage(again, 1, b"bad")
    assert bench.commit(again, [TOPIC, "/default/free"]).result == [0, 0]


# Long checks


@pytest.mark.parametrize(
    ("payloads", "is_long"),
    [
        ([b"x"] * CHECK_COUNT_MAX, False),
        ([b"x"] * (CHECK_COUNT_MAX + 1), True),
        ([b"x" * (CHECK_BYTES_MAX - 1_000)], False),
        ([b"x" * CHECK_BYTES_MAX], True),
    ],
    ids=["few", "many", "small", "large"],
)
def test_many_messages_and_large_ones_are_checked_elsewhere(
    payloads: list[bytes], is_long: bool
) -> None:
    bench = Bench()
    bench.broker.schema_check_of = schema_check_of({LIVE: NoBad()})

    assert (bench.broker.long_check(bench.producer(), batch_of(*payloads)) is not None) is is_long


@pytest.mark.parametrize(("weight", "is_long"), [(0, False), (1, False), (1_000, True)])
def test_what_is_a_lot_of_work_by_its_schema_is_checked_elsewhere(
    weight: int, is_long: bool
) -> None:
    bench = Bench()
    bench.broker.schema_check_of = schema_check_of({LIVE: NoBad(weight)})
    batch = batch_of(b"x" * 2_000)

    assert (bench.broker.long_check(bench.producer(), batch) is not None) is is_long


def test_what_is_not_looked_at_is_never_long() -> None:
    bench = Bench()
    bench.broker.schema_check_of = schema_check_of({LIVE: NoBad(weight=0)})
    batch = batch_of(*[b"x" * CHECK_BYTES_MAX] * CHECK_COUNT_MAX * 2)

    assert bench.broker.long_check(bench.producer(), batch) is None


def test_no_topic_without_schema_check_has_a_long_check() -> None:
    bench = Bench()

    assert bench.broker.long_check(bench.producer(), batch_of(*[b"x"] * 1_000)) is None


def test_a_long_check_finds_what_is_wrong() -> None:
    bench = Bench()
    bench.broker.schema_check_of = schema_check_of({LIVE: NoBad()})
    check = bench.broker.long_check(bench.producer(), batch_of(*[b"bad"] * 100))
    assert check is not None

    with pytest.raises(SchemaViolationError):
        check()


def test_a_batch_that_was_checked_is_not_checked_again() -> None:
    schema_check = NoBad()
    bench = Bench()
    bench.broker.schema_check_of = schema_check_of({LIVE: schema_check})
    batch = batch_of(*[b"good"] * 100)
    check = bench.broker.long_check(bench.producer(), batch)
    assert check is not None
    check()
    bench.broker.publish(bench.producer(), batch, checked=True)

    assert len(schema_check.seen) == 1
    assert bench.topic_report(LIVE).messages_in == 100


def test_what_breaks_another_rule_has_no_long_check() -> None:
    bench = Bench()
    bench.broker.schema_check_of = schema_check_of({LIVE: NoBad()})
    foreign = Batch(b"".join(encode([b"x"] * 100, producer=b"other")))

    with pytest.raises(BadBatchError):
        bench.broker.long_check(bench.producer(), foreign)


def test_a_repetition_of_what_is_stored_has_no_long_check() -> None:
    bench = streams({TOPIC: NoBad()})
    bench.create()
    sent = bench.send([b"good"] * 100)
    assert sent.error is None

    assert bench.broker.long_check(bench.producer(), sent.batch) is None


def test_a_large_transaction_has_a_long_check_until_it_is_done() -> None:
    bench = streams({TOPIC: NoBad()})
    bench.create()
    transaction = bench.begin()
    bench.stage(transaction, 0, *[b"good"] * 40)
    assert bench.broker.long_commit_check(transaction, [TOPIC]) is None
    bench.stage(transaction, 0, *[b"good"] * 40)
    check = bench.broker.long_commit_check(transaction, [TOPIC])
    assert check is not None
    check()
    assert bench.commit(transaction, [TOPIC]).result == [0, 40]

    assert bench.broker.long_commit_check(transaction, [TOPIC]) is None
