"""The upkeep of streams continues after an error; two topics never share a name."""

import pytest
from structlog.testing import capture_logs
from tests.unit.broker.streambench import StreamBench

from ister.base.errors import ConfigError, TopicExistsError
from ister.broker.state.message_ids import MessageIds
from ister.broker.state.shared_budget import SharedBudget


class BrokenIds(MessageIds):
    """Ids that raise when retention reads them."""

    def __init__(self) -> None:
        super().__init__(SharedBudget(1))
        self.looked = 0

    def __bool__(self) -> bool:
        self.looked += 1
        raise ZeroDivisionError


@pytest.fixture
def bench() -> StreamBench:
    return StreamBench()


def test_retention_continues_after_it_failed_for_one_topic(bench: StreamBench) -> None:
    for name in ("/default/a", "/default/b", "/default/c"):
        bench.create(name, max_messages=1)
    broken = bench.topic("/default/b").record.ids = BrokenIds()
    bench.publish(b"0", topic="/default/a")
    bench.publish(b"1", topic="/default/c")
    with capture_logs() as logs:
        for _ in range(3):
            for name in ("/default/a", "/default/c"):
                bench.publish(b"more", topic=name)
            bench.advance(1_000)

    assert broken.looked == 3
    assert bench.topic("/default/a").first_offset == 3
    assert bench.topic("/default/c").first_offset == 3
    assert bench.broker.streams.upkeep.failures == 3
    told = [log for log in logs if log["event"] == "upkeep_failed"]
    assert [log["where"] for log in told] == ["/default/b"] * 3


def test_checkpoints_continue_after_upkeep_of_a_storage_failed(bench: StreamBench) -> None:
    bench.create()
    storage = bench.storage
    calls: list[int] = []

    def maintain() -> None:
        calls.append(1)
        raise ZeroDivisionError

    storage.maintain = maintain  # type: ignore[method-assign]
    bench.advance(3_000)

    assert len(calls) == 3
    assert bench.broker.streams.upkeep.failures == 3


@pytest.mark.parametrize(("here", "there"), [(0, 0), (2, 2), (2, 0), (0, 2)])
def test_start_with_the_same_topic_in_folder_and_store_is_refused(here: int, there: int) -> None:
    remote = StreamBench(objects=True)
    remote.create("/default/x", partitions=there, durability="object")
    local = StreamBench()
    local.create("/default/x", partitions=here)

    with pytest.raises(ConfigError, match="'/default/x'"):
        StreamBench(local.disk, store=remote.store)
    # Each alone is as it was.
    assert StreamBench(local.disk).broker.partition_count("/default/x") == here
    assert StreamBench(store=remote.store).broker.partition_count("/default/x") == there


@pytest.mark.parametrize("first", ["fsync", "object"])
def test_a_topic_of_the_other_storage_cannot_be_created_again(first: str) -> None:
    bench = StreamBench(objects=True)
    bench.create("/default/x", durability=first)

    with pytest.raises(TopicExistsError):
        bench.create("/default/x", durability="object" if first == "fsync" else "fsync")
