"""The checker of the crash tests finds each fault that is planted, and nothing where none is."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from tests.e2e.checker import (
    OFFSET_UNKNOWN,
    Anomaly,
    Delivery,
    Fault,
    History,
    Outcome,
    Send,
    Stored,
    check_derived,
    check_exclusive,
    check_log,
    check_ordered_keys,
    check_subscription,
)


@dataclass
class Case:
    """Two producers with three messages each, and one subscription that has had them all."""

    history: History = field(default_factory=History)
    log: list[Stored] = field(default_factory=list)

    @property
    def deliveries(self) -> list[Delivery]:
        return self.history.deliveries["s"]

    def send(self, value: str) -> Send:
        return next(send for send in self.history.sends if send.value == value)

    def faults(self) -> list[Fault]:
        return [anomaly.fault for anomaly in self.anomalies()]

    def anomalies(self) -> list[Anomaly]:
        return [
            *check_log(self.history, self.log),
            *check_subscription("s", self.deliveries, self.log),
            *check_exclusive("s", self.deliveries),
            *check_ordered_keys("s", self.deliveries),
        ]


VALUES = ["a/0", "b/0", "a/1", "b/1", "a/2", "b/2"]
END = len(VALUES)


def confirmed(offset: int, value: str, key: str) -> Delivery:
    at = 10 * offset
    return Delivery(at, "c", 0, offset, value, key, settled_at=at + 1, confirmed_at=at + 2)


@pytest.fixture
def case() -> Case:
    case = Case()
    for offset, value in enumerate(VALUES):
        case.log.append(Stored(offset, value))
        case.history.sends.append(Send(value[0], value, Outcome.OK, offset))
        case.history.reads["follower"].append(Stored(offset, value))
        # Delivered, acknowledged and confirmed one after the other.
        at = 10 * offset
        case.deliveries.append(
            Delivery(
                at, "c", 0, offset, value, key=value[0], settled_at=at + 1, confirmed_at=at + 2
            )
        )
    return case


def test_a_history_without_faults_passes(case: Case) -> None:
    assert case.anomalies() == []


# Sends of which nobody knows what became.


def info(case: Case, value: str) -> None:
    send = case.send(value)
    send.outcome, send.offset = Outcome.INFO, OFFSET_UNKNOWN


def test_an_indeterminate_send_may_be_in_the_log(case: Case) -> None:
    info(case, "a/2")

    assert case.anomalies() == []


def test_an_indeterminate_send_may_be_missing_from_the_log(case: Case) -> None:
    case.history.sends.append(Send("a", "a/3"))

    assert case.anomalies() == []


def test_an_indeterminate_send_is_not_in_the_log_twice(case: Case) -> None:
    info(case, "a/2")
    add(case, "a/2")

    assert case.faults() == [Fault.DUPLICATE]


def test_an_indeterminate_send_is_in_its_place_in_the_order(case: Case) -> None:
    info(case, "a/0")
    case.log[0], case.log[2] = Stored(0, "a/1"), Stored(2, "a/0")
    case.send("a/1").offset = 0
    case.history.reads.clear()
    case.history.deliveries.clear()

    assert [a.fault for a in check_log(case.history, case.log)] == [Fault.REORDERED]


def test_a_failed_send_may_be_missing(case: Case) -> None:
    case.history.sends.append(Send("a", "a/3", Outcome.FAILED))

    assert case.anomalies() == []


def test_a_message_acknowledged_without_an_offset_need_only_be_there(case: Case) -> None:
    case.send("a/1").offset = OFFSET_UNKNOWN

    assert case.anomalies() == []


# One fault each.


def add(case: Case, value: str) -> None:
    """Put another message into the log, and deliver it."""
    offset = len(case.log)
    case.log.append(Stored(offset, value))
    case.deliveries.append(confirmed(offset, value, "z"))


def lose_the_last(case: Case) -> None:
    case.log.pop()
    case.deliveries.pop()
    case.history.reads["follower"].pop()


def store_twice(case: Case) -> None:
    add(case, "a/2")


def tell_a_wrong_offset(case: Case) -> None:
    case.send("b/1").offset = 2


def swap_two_of_a_producer(case: Case) -> None:
    case.history.sends[0], case.history.sends[2] = case.history.sends[2], case.history.sends[0]


def store_what_was_never_sent(case: Case) -> None:
    add(case, "c/0")


def store_what_had_failed(case: Case) -> None:
    case.history.sends.append(Send("a", "a/3", Outcome.FAILED))
    add(case, "a/3")


def give_a_reader_another_message(case: Case) -> None:
    case.history.reads["follower"][3] = Stored(3, "b/2")


def give_a_reader_what_vanished(case: Case) -> None:
    case.history.reads["follower"].append(Stored(END, "a/3"))


def give_a_reader_a_gap(case: Case) -> None:
    del case.history.reads["follower"][3]


def give_a_reader_one_twice(case: Case) -> None:
    case.history.reads["follower"].insert(3, Stored(2, "a/1"))


def deliver_another_message(case: Case) -> None:
    case.deliveries[3].value = "b/2"


def deliver_after_the_confirmation(case: Case) -> None:
    # To another consumer, and the last, so that nothing else is wrong with it.
    case.deliveries.append(Delivery(99, "c", 1, 5, "b/2", key="b"))


def never_deliver(case: Case) -> None:
    case.deliveries.pop()


PLANTED: list[tuple[Callable[[Case], None], Fault]] = [
    (lose_the_last, Fault.LOST),
    (store_twice, Fault.DUPLICATE),
    (tell_a_wrong_offset, Fault.MISPLACED),
    (store_what_was_never_sent, Fault.UNEXPECTED),
    (store_what_had_failed, Fault.UNEXPECTED),
    (give_a_reader_another_message, Fault.INCONSISTENT),
    (give_a_reader_what_vanished, Fault.INCONSISTENT),
    (give_a_reader_a_gap, Fault.HOLE),
    (give_a_reader_one_twice, Fault.REORDERED),
    (deliver_another_message, Fault.INCONSISTENT),
    (deliver_after_the_confirmation, Fault.REDELIVERED),
    (never_deliver, Fault.UNSEEN),
]


@pytest.mark.parametrize(("plant", "fault"), PLANTED, ids=lambda one: getattr(one, "__name__", ""))
def test_a_planted_fault_is_found(plant: Callable[[Case], None], fault: Fault, case: Case) -> None:
    plant(case)

    assert case.faults() == [fault]


def test_two_messages_of_a_producer_in_the_other_order_are_found(case: Case) -> None:
    swap_two_of_a_producer(case)

    # a/1 was sent before a/0 and a/2 now, and the log has a/0 first.
    assert [a.fault for a in check_log(case.history, case.log)] == [Fault.REORDERED]


def test_a_missing_offset_is_found() -> None:
    log = [Stored(0, "a/0"), Stored(2, "a/1")]
    history = History(sends=[Send("a", s.value, Outcome.OK, s.offset) for s in log])

    assert check_log(history, log) == [Anomaly(Fault.HOLE, "offsets 1 to 1 are missing")]


# The order of deliveries.


def delivery(at: int, offset: int, *, epoch: int = 0, settled_at: int | None = None) -> Delivery:
    return Delivery(at, "c", epoch, offset, f"a/{offset}", key="k", settled_at=settled_at)


def test_offsets_that_fall_without_a_new_attachment_are_found() -> None:
    deliveries = [delivery(1, 0), delivery(2, 1), delivery(3, 0)]

    assert [a.fault for a in check_exclusive("s", deliveries)] == [Fault.REORDERED]


def test_offsets_may_fall_with_a_new_attachment() -> None:
    deliveries = [delivery(1, 0), delivery(2, 1), delivery(3, 0, epoch=1)]

    assert check_exclusive("s", deliveries) == []


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_message_left_out_that_nobody_acknowledged_is_found(epoch: int) -> None:
    deliveries = [delivery(1, 0, settled_at=2), delivery(3, 2, epoch=epoch)]

    assert [a.fault for a in check_exclusive("s", deliveries)] == [Fault.SKIPPED]


def test_a_message_left_out_before_it_was_acknowledged_is_found() -> None:
    deliveries = [
        delivery(1, 0, settled_at=2),
        delivery(3, 1, settled_at=9),
        delivery(4, 2, epoch=1),
    ]

    assert [a.fault for a in check_exclusive("s", deliveries)] == [Fault.SKIPPED]


def test_a_message_left_out_after_it_was_acknowledged_is_fine() -> None:
    deliveries = [
        delivery(1, 0, settled_at=2),
        delivery(3, 1, settled_at=4),
        delivery(5, 2, epoch=1),
    ]

    assert check_exclusive("s", deliveries) == []


def test_a_message_that_overtakes_one_of_its_key_is_found() -> None:
    deliveries = [delivery(1, 3, settled_at=6), delivery(5, 7)]

    assert [a.fault for a in check_ordered_keys("s", deliveries)] == [Fault.OVERTAKEN]


def test_a_message_after_the_acknowledgement_of_the_one_before_is_fine() -> None:
    deliveries = [delivery(1, 3, settled_at=4), delivery(5, 7)]

    assert check_ordered_keys("s", deliveries) == []


def test_messages_of_other_keys_may_overtake() -> None:
    deliveries = [delivery(1, 3), delivery(5, 7)]
    deliveries[1].key = "l"

    assert check_ordered_keys("s", deliveries) == []


# What transactions make of a log.

INPUTS = [Stored(0, "a/0"), Stored(1, "a/1")]


def test_every_input_made_one_output_in_any_order() -> None:
    assert check_derived(INPUTS, [Stored(0, "a/1"), Stored(1, "a/0")], "out") == []


@pytest.mark.parametrize(
    ("outputs", "fault"),
    [
        (["a/0"], Fault.LOST),
        (["a/0", "a/1", "a/0"], Fault.DUPLICATE),
        (["a/0", "a/1", "a/2"], Fault.UNEXPECTED),
    ],
)
def test_an_output_too_few_or_too_many_is_found(outputs: list[str], fault: Fault) -> None:
    stored = [Stored(offset, value) for offset, value in enumerate(outputs)]

    assert [a.fault for a in check_derived(INPUTS, stored, "out")] == [fault]
