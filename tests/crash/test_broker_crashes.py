"""The machine stops at every operation of a broker's life: every promise to its clients holds."""

import pytest
from tests.crash.aftermath import verify
from tests.crash.business import (
    AFTER_MS,
    JOBS,
    LETTERS,
    PARTS,
    PLAIN,
    WORK,
    live,
    live_until_crash,
    operations,
)
from tests.crash.conftest import WAYS
from tests.crash.customer import Customer
from tests.crash.life import Life
from tests.crash.machine import OpenBackend, in_store, on_disk
from tests.crash.promises import Promises, check, look

from ister.broker.durable.ack_journal import LAZY_S
from ister.broker.storage.committer import AT_ONCE_BYTES
from ister.testing import Crash, FaultyDisk, Keep


@pytest.fixture(params=["files", "chunks"])
def open_backend(request: pytest.FixtureRequest) -> OpenBackend:
    """A broker with a data folder, and with an object store."""
    return on_disk if request.param == "files" else in_store


def test_the_workload_does_all_of_it_and_ends_with_every_promise_kept(
    open_backend: OpenBackend,
) -> None:
    disk, promises = FaultyDisk(), Promises()
    life = live(disk, promises, open_backend).life
    found = look(life)

    check(found, promises, power_cut=False)
    assert len(disk.operations) > 80
    assert {"put", "remove"} <= {operation.action for operation in disk.operations}
    assert life.storage.compactor.figures.by_reason
    assert found.topics[LETTERS].origins == (1,)
    assert found.topics[JOBS].offsets == range(2, 4)
    assert PARTS not in found.partitions
    assert list(found.transactions) == ["t-1", "t-2", "t-3"]


def test_after_a_stop_at_any_operation_every_promise_to_clients_holds() -> None:
    for number in range(operations() + 1):
        stop_and_verify(number, on_disk, WAYS[0], WAYS[1 + number % 5])


def test_after_a_stop_every_promise_of_a_broker_with_an_object_store_holds() -> None:
    for number in range(0, operations(in_store) + 1, 2):
        # Nothing of an object is ever torn.
        stop_and_verify(number, in_store, *WAYS[:2])


def stop_and_verify(number: int, open_backend: OpenBackend, *ways: tuple[Keep, int]) -> None:
    """Stop at an operation, and look at what may be found after it."""
    disk = FaultyDisk()
    disk.crash_at(number)
    promises = live_until_crash(disk, open_backend)
    for way, (keep, seed) in enumerate(ways):
        try:
            verify(
                disk.reopen(keep, seed=seed),
                promises,
                power_cut=keep != "all",
                go_on=(number // 2 + way) % 2 == 0,
                open_backend=open_backend,
            )
        except Exception as error:
            error.add_note(f"stopped at operation {number}, found {keep!r}, seed {seed}")
            raise


def test_an_ack_nobody_waits_for_is_written_soon_also_while_groups_are_under_way() -> None:
    disk, promises = FaultyDisk(), Promises()
    customer = Customer(Life(disk, now_ms=AFTER_MS), promises)
    customer.do(customer.create(PLAIN))
    customer.do(customer.subscribe(*WORK))
    customer.do(customer.send(PLAIN, "p", 10))
    life = customer.life
    life.ask(customer.send(PLAIN, "p", 10).issue)
    life.turn()
    life.ask(customer.ack(WORK, PLAIN, 0, confirm=False).issue)
    life.clock.advance(LAZY_S)
    life.settle()

    [cursors] = look(Life(disk.reopen("all"), now_ms=AFTER_MS)).cursors.values()
    assert cursors[PLAIN].floor == 1


def test_answers_come_in_the_order_of_the_journal_also_when_small_groups_are_written_at_once() -> (
    None
):
    customer = Customer(Life(FaultyDisk(), now_ms=AFTER_MS), Promises())
    customer.do(customer.create(PLAIN))
    life = customer.life
    told: list[list[int]] = []
    life.storage.committer.at_once = lambda: True
    for _ in range(100):
        # Until the disk is known to be quick.
        customer.do(customer.send(PLAIN, "p", 10))
    for size in (2 * AT_ONCE_BYTES, 10, 10):
        life.ask(customer.send(PLAIN, "p", size).issue, told.append)
        life.turn()
    life.settle()

    assert told == [[100], [101], [102]]


def test_after_a_stop_while_a_broker_starts_every_promise_to_clients_holds() -> None:
    for number in range(0, operations() + 1, 7):
        disk = FaultyDisk()
        disk.crash_at(number)
        promises = live_until_crash(disk)
        keep, seed = WAYS[number % len(WAYS)]
        second = 0
        while stops_while_starting(again := disk.reopen(keep, seed=seed), second):
            try:
                verify(again.reopen("torn", seed=seed), promises, go_on=second % 2 == 0)
            except Exception as error:
                error.add_note(
                    f"stopped at operation {number}, found {keep!r}, seed {seed}; then at {second} "
                    "of the start"
                )
                raise
            second += 1


def stops_while_starting(disk: FaultyDisk, number: int) -> bool:
    """Start a broker on a disk that stops at an operation; return whether it came to that."""
    disk.crash_at(number)
    try:
        Life(disk, now_ms=AFTER_MS).settle()
    except Crash:
        return True
    return False
