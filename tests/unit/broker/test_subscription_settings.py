"""Settings of subscriptions: those that are given change, live, and the others stay."""

from typing import Any

import pytest
from tests.unit.broker.fakes import Bench
from tests.unit.broker.streambench import TOPIC, Member, Outcome, StreamBench

from ister.base import AckSettings
from ister.base.errors import (
    StorageFailedError,
    SubscriptionMismatchError,
    SubscriptionTakenError,
)
from ister.broker import SubscribeOptions
from ister.testing.disk import Fault


@pytest.fixture
def bench() -> StreamBench:
    bench = StreamBench()
    bench.create()
    return bench


def consume(bench: StreamBench, **given: Any) -> Member:
    """Attach a consumer that says what it has chosen, as the SDK does."""
    acks = given.pop("acks", None)
    others = {name: given.pop(name) for name in ("consumer", "held") if name in given}
    return bench.consume(acks=acks, given=[*given, *(acks or ())], **given, **others)


def update(bench: StreamBench, *, acks: dict[str, Any] | None = None, **given: Any) -> Outcome:
    outcome = Outcome()
    options = SubscribeOptions(
        topic=TOPIC,
        subscription="s",
        consumer="",
        **{"filters": {}} | given,
        acks=AckSettings(**acks) if acks else None,
        given=[*given, *(acks or ())],
    )
    bench.broker.subscribers.update(options, outcome)
    bench.settle()
    return outcome


def settings(bench: StreamBench) -> AckSettings:
    found = bench.report().cursor.settings
    assert isinstance(found, AckSettings)
    return found


def test_settings_that_are_not_given_stay(bench: StreamBench) -> None:
    first = {"ack_timeout_ms": 60_000, "max_deliveries": 9}
    consume(bench, type="shared", policy="random", filters={"a": "1"}, acks=first).leave()
    consume(bench, acks={"max_deliveries": 5}).leave()
    bench.restart()

    report = bench.report()
    assert (report.type, report.policy, report.filters) == ("shared", "random", {"a": "1"})
    assert settings(bench) == AckSettings(ack_timeout_ms=60_000, max_deliveries=5)


def test_the_newest_consumer_changes_settings_while_others_are_there(bench: StreamBench) -> None:
    old = consume(bench, type="shared", acks={"ack_timeout_ms": 30_000})
    bench.publish(b"0")
    consume(bench, type="shared", policy="round_robin", acks={"ack_timeout_ms": 60_000})

    assert settings(bench).ack_timeout_ms == 60_000
    assert bench.report().policy == "round_robin"
    # Its lease is still its own.
    assert old.ack(*old.messages) == []


def test_a_consumer_that_comes_back_changes_nothing(bench: StreamBench) -> None:
    old = consume(bench, type="shared", consumer="old", acks={"max_deliveries": 3})
    consume(bench, type="shared", acks={"max_deliveries": 7})
    old.lose()
    consume(bench, type="shared", consumer="old", acks={"max_deliveries": 3}, held=[])

    assert settings(bench).max_deliveries == 7


def test_a_consumer_that_is_refused_changes_nothing(bench: StreamBench) -> None:
    consume(bench, acks={"max_deliveries": 3})

    with pytest.raises(SubscriptionTakenError):
        consume(bench, acks={"max_deliveries": 7})
    assert settings(bench).max_deliveries == 3


def test_a_peer_that_does_not_say_changes_what_is_not_the_default(bench: StreamBench) -> None:
    consume(bench, acks={"ack_timeout_ms": 60_000, "max_deliveries": 9}).leave()
    bench.consume(acks={"max_deliveries": 7}).leave()

    assert settings(bench) == AckSettings(ack_timeout_ms=60_000, max_deliveries=7)
    with pytest.raises(SubscriptionMismatchError):
        bench.consume(type="shared")


def test_an_update_changes_what_is_given(bench: StreamBench) -> None:
    member = consume(bench, type="shared", acks={"ack_timeout_ms": 60_000})
    update(bench, policy="random", filters={"a": "1"}, acks={"poison": "drop"})
    bench.publish(b"0", b"1", attributes=[{"a": "1"}, {"a": "2"}])

    assert member.payloads == [b"0"]
    bench.restart()
    report = bench.report()
    assert (report.policy, report.filters) == ("random", {"a": "1"})
    assert settings(bench) == AckSettings(ack_timeout_ms=60_000, poison="drop")


def test_filters_can_be_given_up(bench: StreamBench) -> None:
    member = consume(bench, filters={"a": "1"})
    update(bench, filters={})
    bench.publish(b"0")

    assert member.payloads == [b"0"]


@pytest.mark.parametrize("type_", ["shared", "failover", "key_shared"])
def test_the_type_changes_without_consumers(bench: StreamBench, type_: str) -> None:
    bench.publish(b"0", b"1", b"2", keys=["a", "b", "c"])
    member = bench.consume(type="exclusive" if type_ == "key_shared" else "key_shared", credit=0)
    member.grant(1)
    member.ack(*member.take())
    member.leave()
    again = consume(bench, type=type_)

    assert sorted(again.offsets) == [1, 2]
    assert again.membership.type == type_
    assert again.ack(*again.messages) == []
    bench.restart()
    assert bench.report().type == type_


def test_the_type_does_not_change_under_consumers(bench: StreamBench) -> None:
    consume(bench, type="shared")
    consume(bench, type="shared")

    with pytest.raises(SubscriptionMismatchError, match="type 'shared' and 2 consumers: "):
        update(bench, type="failover")


def test_consumers_wait_until_the_journal_has_the_new_type(bench: StreamBench) -> None:
    consume(bench, type="shared").leave()
    bench.writing.holding = True
    update(bench, type="failover")
    _, outcome = bench.subscribe(given=[])
    bench.settle()

    assert outcome.told == []
    bench.writing.release()
    bench.settle()
    assert outcome.result.type == "failover"


def test_a_type_that_could_not_be_stored_is_taken_back(bench: StreamBench) -> None:
    consume(bench, type="shared").leave()
    bench.disk.fail(Fault())
    outcome = update(bench, type="failover", acks={"max_deliveries": 9})

    assert isinstance(outcome.result, StorageFailedError)
    assert bench.report().type == "shared"
    assert settings(bench) == AckSettings()


def test_key_filters_are_those_of_the_consumer_of_a_key_shared_subscription(
    bench: StreamBench,
) -> None:
    consume(bench, type="key_shared", key_filters=["a*"])
    other = consume(bench, key_filters=["b*"])
    bench.publish(b"0", b"1", keys=["a", "b"])

    assert other.payloads == [b"1"]


def test_a_live_subscription_takes_the_settings_of_its_newest_consumer() -> None:
    bench = Bench()
    first = bench.consume(type="shared")
    bench.consume(type="shared", filters={"a": "1"}, policy="round_robin", given=["filters"])
    bench.publish(b"0", b"1", attributes=[{"a": "1"}, None])

    assert first.subscription.filter.attributes == {"a": "1"}
    assert first.subscription.policy.value == "least_loaded"
    assert bench.consume(given=[]).subscription is first.subscription
    assert bench.topic_report().messages_dropped == 1
