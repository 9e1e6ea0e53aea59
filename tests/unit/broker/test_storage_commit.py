"""The one way into a journal: whole or not at all, answered once, never by raising."""

from structlog.testing import capture_logs
from tests.unit.broker.streambench import TOPIC, StreamBench

from ister.base.errors import IsterError, StorageFailedError
from ister.broker import Write
from ister.broker.state.changes import NamespaceCreated, TopicTrimmed
from ister.codec import Batch, encode


def stamped(bench: StreamBench) -> Batch:
    head, body = encode([b"a"])
    batch = Batch(head + body)
    bench.topic().stamp(batch)
    return batch


def test_changes_are_in_the_state_when_the_write_is_answered_and_batches_right_after() -> None:
    bench = StreamBench()
    bench.create()
    bench.publish(b"0", b"1")
    seen: list[tuple[IsterError | None, int, int]] = []
    write = Write(
        batches=[(bench.topic(), stamped(bench))],
        changes=[TopicTrimmed(bench.topic().record.topic, 1)],
        journal_only=[NamespaceCreated("other")],
    )
    bench.storage.commit(
        write, lambda e: seen.append((e, bench.topic().first_offset, bench.topic().next_offset))
    )

    assert not seen
    bench.settle()
    assert seen == [(None, 1, 2)]
    assert bench.topic().next_offset == 3
    # The caller sees to it, but a restart finds it.
    assert "other" not in bench.storage.state.namespaces
    bench.restart()
    assert "other" in bench.storage.state.namespaces


def test_batches_are_shown_although_the_answer_fails() -> None:
    bench = StreamBench()
    bench.create()
    consumer = bench.consume(TOPIC, "s")

    def fail(_: object) -> None:
        raise ZeroDivisionError

    bench.storage.commit(Write(batches=[(bench.topic(), stamped(bench))]), fail)
    with capture_logs() as logs:
        bench.settle()

    assert [log["event"] for log in logs] == ["internal_error"]
    assert [message.payload for message in consumer.messages] == [b"a"]


def test_a_write_while_the_storage_fails_is_refused_by_its_answer() -> None:
    bench = StreamBench()
    bench.create()
    bench.storage.committer.error = failed = StorageFailedError("broken")
    answers: list[IsterError | None] = []

    bench.storage.commit(Write(changes=[NamespaceCreated("other")]), answers.append)
    assert not answers
    bench.settle()

    assert answers == [failed]
    assert "other" not in bench.storage.state.namespaces
    assert not bench.storage.log.collecting
