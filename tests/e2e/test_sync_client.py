"""What only the blocking client can get wrong: threads, signals, forks, the end of the process."""

import gc
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from ister import Schema, sync
from ister.base.errors import (
    BadRequestError,
    ClosedError,
    NotConnectedError,
    OffsetMismatchError,
    ProducerFullError,
    RequestTimeoutError,
    SchemaViolationError,
)
from ister.client.session import PendingBatch
from ister.testing import ThreadedBroker

pytestmark = pytest.mark.e2e

# A process that does not end by itself within this hangs.
HANGS_S = 30


def test_no_broker_is_told_by_connect_and_leaves_no_thread() -> None:
    with ThreadedBroker() as broker:
        url = broker.url
    threads = threading.active_count()

    with pytest.raises(NotConnectedError):
        sync.connect(url, connect_timeout=0)
    assert threading.active_count() == threads


def test_closing_ends_the_thread_and_may_be_repeated(ister_url: str) -> None:
    threads = threading.active_count()
    client = sync.connect(ister_url)
    client.close()
    client.close()

    assert threading.active_count() == threads
    assert not client.connected


def test_a_producer_keeps_its_client_open(ister_url: str) -> None:
    producer = sync.connect(ister_url).producer("/default/orders")
    gc.collect()
    with producer:
        assert producer.send(b"x").offset == 0


def test_threads_share_a_producer_and_lose_nothing(ister_url: str) -> None:
    with (
        sync.connect(ister_url) as client,
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders") as producer,
        ThreadPoolExecutor(4) as pool,
    ):

        def work(worker: int) -> None:
            for number in range(500):
                producer.send_nowait(b"%d:%d" % (worker, number))

        list(pool.map(work, range(4)))
        producer.flush()
        received = [sub.receive(timeout=10.0).payload for _ in range(2_000)]

        for worker in range(4):
            of_one = [p for p in received if p.startswith(b"%d:" % worker)]
            assert of_one == [b"%d:%d" % (worker, n) for n in range(500)]


def test_threads_share_a_subscription_and_each_message_goes_to_one(ister_url: str) -> None:
    with (
        sync.connect(ister_url) as client,
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders") as producer,
        ThreadPoolExecutor(4) as pool,
    ):
        taking = [
            pool.submit(lambda: [sub.receive(timeout=10.0).payload for _ in range(250)])
            for _ in range(4)
        ]
        producer.send_batch([b"%d" % n for n in range(1_000)])

        received = [payload for one in taking for payload in one.result()]
        assert sorted(received) == sorted(b"%d" % n for n in range(1_000))


def test_a_producer_refuses_when_the_loop_is_far_behind(ister_url: str) -> None:
    payload = bytes(1024 * 1024)
    with sync.connect(ister_url) as client, client.producer("/default/orders") as producer:
        awake = threading.Event()
        # Nothing leaves before the loop goes on, so that what is sent adds up.
        client.thread.post(lambda: awake.wait(HANGS_S))
        with pytest.raises(ProducerFullError):
            deque((producer.send_nowait(payload) for _ in range(200)), maxlen=0)
        awake.set()
        producer.flush()

        assert producer.pending_bytes == 0


def test_a_future_can_be_waited_for_with_a_limit() -> None:
    with (
        ThreadedBroker() as broker,
        sync.connect(broker.url) as client,
        client.producer("/default/orders", resend=True) as producer,
    ):
        broker.stop()
        late = producer.send_nowait(b"x")
        for wait in (late.result, late.exception):
            with pytest.raises(RequestTimeoutError):
                wait(timeout=0.01)
        assert not late.done()
        broker.start()

        assert late.result().offset == 0


def test_a_callback_must_not_block_in_the_thread_of_the_client(ister_url: str) -> None:
    raised: list[BadRequestError] = []
    told = threading.Event()
    with sync.connect(ister_url) as client, client.producer("/default/orders") as producer:

        def on_done(_: sync.SendFuture) -> None:
            try:
                client.topics()
            except BadRequestError as error:
                raised.append(error)
            told.set()

        producer.send_nowait(b"x").add_done_callback(on_done)
        assert told.wait(HANGS_S)

    assert len(raised) == 1


@pytest.fixture
def plain_sigint() -> Iterator[None]:
    """Python's own answer to Ctrl-C: Spark, if it ran in this process before, has left another."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("plain_sigint")
def test_ctrl_c_ends_a_wait_and_the_client_goes_on(ister_url: str) -> None:
    with (
        sync.connect(ister_url) as client,
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders") as producer,
    ):
        main = threading.main_thread().ident
        assert main is not None

        def interrupted() -> None:
            threading.Timer(0.05, signal.pthread_kill, [main, signal.SIGINT]).start()
            sub.receive()

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        producer.send(b"x")

        assert sub.receive(timeout=10.0).payload == b"x"


def test_closing_from_another_thread_ends_a_loop_over_messages(ister_url: str) -> None:
    client = sync.connect(ister_url)
    sub = client.subscribe("/default/orders", "billing")
    sub.open()
    closing = threading.Timer(0.05, client.close)
    closing.start()

    assert list(sub) == []
    with pytest.raises(ClosedError):
        sub.receive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_is_told_and_can_leave(ister_url: str) -> None:
    code = f"""
import os, sys, ister
with ister.sync.connect({ister_url!r}) as client:
    client.create_topic("/default/orders")
    with client.producer("/default/orders") as producer:
        pid = os.fork()
        if pid == 0:
            for call in (client.topics, lambda: producer.send_nowait(b"x")):
                try:
                    call()
                except ister.InvalidError as error:
                    assert "fork" in str(error), error
                else:
                    os._exit(1)
        else:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert status == 0, status
            assert producer.send(b"x").offset == 0
"""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        timeout=HANGS_S,
        check=False,
        capture_output=True,
        text=True,
    )

    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("ending", ["pass", "sys.exit(0)", "del client, producer; gc.collect()"])
def test_a_process_ends_although_its_client_was_not_closed(ister_url: str, ending: str) -> None:
    code = f"""
import gc, sys, ister
client = ister.sync.connect({ister_url!r})
client.create_topic("/default/orders")
producer = client.producer("/default/orders")
producer.open()
producer.send(b"x")
{ending}
"""
    ended = subprocess.run(
        [sys.executable, "-W", "always", "-c", code],
        timeout=HANGS_S,
        check=False,
        capture_output=True,
        text=True,
    )

    assert (ended.returncode, ended.stderr) == (0, "")


def test_sends_that_the_broker_refuses_are_freed(ister_url: str) -> None:
    def batches() -> int:
        gc.collect()
        return sum(isinstance(found, PendingBatch) for found in gc.get_objects())

    with sync.connect(ister_url) as client:
        client.create_topic("/default/orders", kind="stream")
        client.schemas.register("orders", Schema("json", b'{"type": "object"}'))
        client.schemas.bind("/default/orders", "orders")
        with client.producer("/default/orders") as producer:
            before = batches()
            for _ in range(10):
                with pytest.raises(SchemaViolationError):
                    producer.send(b"x")
                future = producer.send_nowait(b"x")
                assert isinstance(future.exception(), SchemaViolationError)
                with pytest.raises(SchemaViolationError):
                    future.result()

            # A few may still be held by the last turn of the loop.
            assert batches() <= before + 3


def test_a_refused_send_is_freed_without_the_garbage_collector(ister_url: str) -> None:
    def errors() -> int:
        return sum(isinstance(found, OffsetMismatchError) for found in gc.get_objects())

    with sync.connect(ister_url) as client:
        client.create_topic("/default/orders", kind="stream")
        with client.producer("/default/orders") as producer:
            gc.collect()
            gc.disable()
            try:
                before = errors()
                for _ in range(10):
                    with suppress(OffsetMismatchError):
                        producer.send(b"x", expected_offset=7)

                # The last one may still be held by the last turn of the loop.
                assert errors() <= before + 1
            finally:
                gc.enable()


def test_a_message_whose_handler_raises_counts_as_an_attempt(ister_url: str) -> None:
    def work() -> None:
        with client.subscribe("/default/jobs", "workers", type="shared", start="earliest") as sub:
            for message in sub:
                if message.payload == b"poison":
                    raise ZeroDivisionError(message.attempt)
                message.ack()

    with sync.connect(ister_url) as client:
        client.create_topic("/default/jobs", kind="stream")
        with client.producer("/default/jobs") as producer:
            producer.send_batch([b"poison", b"other"])

        for attempt in (1, 2, 3):
            with pytest.raises(ZeroDivisionError, match=f"{attempt}"):
                work()
        with client.subscribe("/default/jobs", "workers", type="shared") as sub:
            message = sub.receive(1.0)
        assert (message.payload, message.attempt) == (b"poison", 4)


def test_batches_behind_the_one_that_ends_the_loop_cost_no_attempt(ister_url: str) -> None:
    with sync.connect(ister_url) as client:
        client.create_topic("/default/jobs", kind="stream")
        with client.subscribe("/default/jobs", "workers", buffer_count=3) as sub:
            with client.producer("/default/jobs") as producer:
                for number in range(3):
                    producer.send_batch([b"%d" % number])
            # The answer that says so comes behind all three.
            while (cursor := client.subscriptions("/default/jobs")[0].cursor) is not None:
                if cursor.in_flight == 3:
                    break
            assert next(sub.batches()).payloads == [b"0"]

        with client.subscribe("/default/jobs", "workers") as sub:
            found = [sub.receive(1.0) for _ in range(3)]
        assert sorted((m.payload, m.attempt) for m in found) == [(b"0", 2), (b"1", 1), (b"2", 1)]
