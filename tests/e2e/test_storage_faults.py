"""Disks that are full, fail or were damaged: what was acknowledged stays, and one is told."""

import asyncio
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from tests.e2e.conftest import BrokerProcess, plain_environment
from tests.e2e.disks import (
    BATCH,
    contents,
    entries,
    faulty_calls,
    fill_disk,
    flip_bit,
    overwrite,
    segments,
    small_disk,
)
from tests.e2e.raw import WAIT_S, wait_until

import ister
from ister.base.errors import (
    ConflictError,
    CorruptedError,
    StorageFailedError,
    StorageTakenError,
)

pytestmark = pytest.mark.e2e

TOPIC = "/default/ledger"
OTHER = "/default/other"
# Files of the smallest size, so that a small disk holds several.
OPTIONS = ["--segment-size", "1MiB"]
DISK_MIB = 12
PAYLOAD = b"x" * 60_000
# More than an open file still takes, so that the disk is asked for room.
SENDS_MAX = 60


@contextmanager
def running(folder: Path) -> Iterator[BrokerProcess]:
    """Run a broker with small files, all of its own in `folder`."""
    broker = BrokerProcess(folder, OPTIONS)
    broker.start()
    try:
        yield broker
    finally:
        if broker.process is not None:
            broker.kill()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with running(tmp_path) as broker:
        yield broker


def data_of(broker: BrokerProcess) -> Path:
    return broker.folder / "data"


def readiness(broker: BrokerProcess) -> tuple[int, str]:
    """Return what `/readyz` answers."""
    try:
        with urllib.request.urlopen(f"http://{broker.http}/readyz", timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def wait_ready(broker: BrokerProcess, status: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while (await asyncio.to_thread(readiness, broker))[0] != status:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def read_all(client: ister.Client, topic: str = TOPIC) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    async with client.reader(topic) as reader:
        async for batch in reader:
            found += zip(batch.offsets, batch.payloads, strict=True)
    return found


class Writer:
    """Sends numbered messages one after the other, and remembers what became of them."""

    def __init__(self, client: ister.Client) -> None:
        self.client = client
        self.producer = client.producer(TOPIC, name="writer")
        self.acknowledged: dict[int, bytes] = {}
        self.refused: list[bytes] = []
        self._number = 0

    async def send(self) -> None:
        """Send one message; raises what the broker says to it."""
        self._number += 1
        payload = b"%d " % self._number + PAYLOAD
        try:
            message_id = await self.producer.send(payload)
        except StorageFailedError:
            self.refused.append(payload)
            raise
        self.acknowledged[message_id.offset] = payload

    async def send_until_refused(self) -> StorageFailedError:
        for _ in range(SENDS_MAX):
            try:
                await self.send()
            except StorageFailedError as error:
                return error
        raise AssertionError(f"{SENDS_MAX} messages were taken by a disk without room")

    async def check(self) -> None:
        """Everything acknowledged is where it was said to be, and nothing else is there twice."""
        found = await read_all(self.client)
        stored = dict(found)

        assert [offset for offset, _ in found] == list(range(len(found)))
        assert {offset: stored.get(offset) for offset in self.acknowledged} == self.acknowledged
        others = [stored[offset] for offset in stored if offset not in self.acknowledged]
        # What was refused may have been stored all the same, when nobody could know; but once.
        assert len(set(others)) == len(others)
        assert set(others) <= set(self.refused)


@asynccontextmanager
async def writing(broker: BrokerProcess) -> AsyncIterator[Writer]:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="stream")
        writer = Writer(client)
        async with writer.producer:
            yield writer


# A disk without room.


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
async def test_a_full_disk_refuses_writes_and_loses_nothing_acknowledged(
    kind: str, tmp_path: Path
) -> None:
    with small_disk(tmp_path, kind, DISK_MIB) as disk, running(disk) as broker:
        async with writing(broker) as writer:
            for _ in range(5):
                await writer.send()
            ballast = fill_disk(disk)
            error = await writer.send_until_refused()
            assert "space" in str(error)
            await wait_ready(broker, 503)
            # Reads go on, of what was written before and of the last that was acknowledged.
            await writer.check()
            with pytest.raises(StorageFailedError):
                await writer.send()
            acknowledged = len(writer.acknowledged)

            ballast.unlink()
            await wait_ready(broker, 200)
            for _ in range(5):
                await writer.send()
            assert len(writer.acknowledged) == acknowledged + 5
            await writer.check()

            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.restart)
            await writer.send()
            await writer.check()


async def test_a_consumer_is_served_and_its_acknowledgements_are_taken_on_a_full_disk(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path, "tmpfs", DISK_MIB) as disk, running(disk) as broker:
        async with (
            writing(broker) as writer,
            writer.client.subscribe(TOPIC, "s", start="earliest") as sub,
        ):
            for _ in range(5):
                await writer.send()
            ballast = fill_disk(disk)
            await writer.send_until_refused()
            messages = [await sub.receive(WAIT_S) for _ in writer.acknowledged]

            for msg in messages[:-1]:
                await msg.ack()
            # Acknowledgements without a confirmation are journaled within 0.1 s, or with this one.
            await messages[-1].ack(confirm=True)
            await lag_is(writer.client, 0)
            ballast.unlink()
            await wait_ready(broker, 200)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.restart)
            await lag_is(writer.client, 0)

            await writer.send()
            assert (await sub.receive(WAIT_S)).offset == max(writer.acknowledged)


async def lag_is(client: ister.Client, lag: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            [report] = await client.subscriptions(TOPIC)
            assert report.cursor is not None
            if report.cursor.lag == lag:
                return
            await asyncio.sleep(0.05)


async def test_a_broker_starts_on_a_full_disk_and_serves_what_is_there(tmp_path: Path) -> None:
    with small_disk(tmp_path, "tmpfs", DISK_MIB) as disk, running(disk) as broker:
        async with writing(broker) as writer:
            for _ in range(5):
                await writer.send()
            ballast = fill_disk(disk)
            await writer.send_until_refused()
            await asyncio.to_thread(broker.kill)
            # The ready file and the log are on the full disk, too.
            broker.ready_file, broker.log = tmp_path / "ready.json", tmp_path / "log"
            await asyncio.to_thread(broker.restart)
            await writer.check()

            ballast.unlink()
            await wait_ready(broker, 200)
            await writer.send()
            await writer.check()


# A disk that fails.


@pytest.mark.parametrize("call", ["sync", "write"])
async def test_a_failed_write_acknowledges_nothing_and_the_broker_recovers_by_itself(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = faulty_calls(tmp_path, monkeypatch, call)
    with running(tmp_path) as broker:
        async with writing(broker) as writer:
            for _ in range(3):
                await writer.send()
            switch.touch()
            sending = asyncio.create_task(writer.send())
            await wait_ready(broker, 503)
            async with writer.client.producer(TOPIC, name="other") as other:
                with pytest.raises(StorageFailedError):
                    await other.send(b"refused")
            assert len(await read_all(writer.client)) == 3
            if call == "write":
                # Cut off again: it is not stored.
                with pytest.raises(StorageFailedError):
                    await sending
            assert sending.done() == (call == "write")

            switch.unlink()
            await wait_ready(broker, 200)
            if call == "sync":
                # Nobody knew whether it is stored, so the client has repeated it.
                await sending
            for _ in range(3):
                await writer.send()
            assert len(writer.acknowledged) == (7 if call == "sync" else 6)
            await writer.check()
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.restart)
            await writer.check()


@pytest.mark.parametrize("what", ["message", "transaction"])
async def test_what_is_uncertain_when_the_broker_is_killed_is_stored_once(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = faulty_calls(tmp_path, monkeypatch, "sync")
    with running(tmp_path) as broker:
        async with writing(broker) as writer:
            await writer.send()
            transaction = writer.client.transaction()
            transaction.send(TOPIC, b"of a transaction")
            switch.touch()
            task = asyncio.create_task(writer.send() if what == "message" else transaction.commit())
            await wait_ready(broker, 503)
            await asyncio.to_thread(broker.kill)
            switch.unlink()
            await asyncio.to_thread(broker.restart)
            await task
            await writer.send()

            if what == "transaction":
                writer.acknowledged[transaction.results[0].offset] = b"of a transaction"
            assert sorted(writer.acknowledged) == [0, 1, 2]
            await writer.check()


async def test_a_failed_read_delays_a_consumer_and_hides_nothing_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = faulty_calls(tmp_path, monkeypatch, "read")
    with running(tmp_path) as broker:
        async with writing(broker) as writer:
            # Nobody listens: they are not kept in memory.
            for _ in range(5):
                await writer.send()
            switch.touch()
            async with writer.client.subscribe(TOPIC, "s", start="earliest") as sub:
                assert await sub.fetch(1, timeout=0.5) == []
                with pytest.raises(StorageFailedError, match="cannot be read"):
                    await read_all(writer.client)
                # Writes have nothing to do with it.
                await writer.send()

                switch.unlink()
                messages = [await sub.receive(WAIT_S) for _ in range(6)]

    assert {msg.offset: msg.payload for msg in messages} == writer.acknowledged
    assert [msg.attempt for msg in messages] == [1] * 6


# Damaged files.


async def write_some(broker: BrokerProcess, count: int = 10) -> list[bytes]:
    """Send messages one by one, a commit for each; return the payloads."""
    payloads = [b"%d " % n + b"y" * 500 for n in range(count)]
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="stream")
        async with client.producer(TOPIC, name="p") as producer:
            for payload in payloads:
                await producer.send(payload)
    return payloads


async def stored(broker: BrokerProcess, topic: str = TOPIC) -> list[bytes]:
    async with ister.connect(broker.url) as client:
        return [payload for _, payload in await read_all(client, topic)]


def logged(broker: BrokerProcess, event: str) -> list[str]:
    return [line for line in broker.log_text().splitlines() if f'"{event}"' in line]


@pytest.mark.parametrize("half", ["first", "garbled"])
async def test_a_write_that_was_under_way_is_cut_off_with_a_warning(
    half: str, broker: BrokerProcess
) -> None:
    payloads = await write_some(broker)
    broker.kill()
    journal = segments(data_of(broker))[-1]
    last = entries(journal)[-1]
    piece = journal.read_bytes()[last.position : last.position + last.size_bytes // 2]
    if half == "garbled":
        piece = piece[:40] + bytes(255 - byte for byte in piece[40:])
    overwrite(journal, last.position + last.size_bytes, piece)

    broker.restart()

    assert await stored(broker) == payloads
    [warning] = logged(broker, "torn_tail_cut")
    assert journal.name in warning
    assert str(last.position + last.size_bytes) in warning
    # Cut for good: the next start finds nothing to cut.
    broker.kill()
    broker.restart()
    assert await stored(broker) == payloads
    assert len(logged(broker, "torn_tail_cut")) == 1


@pytest.mark.parametrize("damage", ["garbled", "truncated"])
async def test_a_last_entry_that_is_not_whole_is_cut_and_the_ones_before_stay(
    damage: str, broker: BrokerProcess
) -> None:
    payloads = await write_some(broker)
    broker.kill()
    journal = segments(data_of(broker))[-1]
    last = entries(journal)[-1]
    assert last.kind == BATCH
    if damage == "garbled":
        overwrite(journal, last.position + last.size_bytes - 100, b"\0" * 100)
    else:
        with journal.open("r+b") as file:
            file.truncate(last.position + last.size_bytes - 100)

    broker.restart()

    assert await stored(broker) == payloads[:-1]
    assert len(logged(broker, "torn_tail_cut")) == 1
    async with (
        ister.connect(broker.url) as client,
        client.producer(TOPIC, name="q") as producer,
    ):
        assert (await producer.send(b"next")).offset == len(payloads) - 1


def refusal(broker: BrokerProcess) -> tuple[int, str]:
    """Start a broker that must not start; return its exit code and what it says."""
    command = [sys.executable, "-m", "ister", "serve", "--data", str(data_of(broker))]
    command += ["--port", "0", "--http-port", "0", "--no-grpc", *broker.args]
    done = subprocess.run(
        command, capture_output=True, timeout=WAIT_S, env=plain_environment(), check=False
    )
    return done.returncode, (done.stdout + done.stderr).decode()


async def test_a_flipped_bit_in_the_middle_stops_the_broker_and_nothing_is_changed(
    broker: BrokerProcess,
) -> None:
    await write_some(broker)
    broker.kill()
    journal = segments(data_of(broker))[-1]
    damaged = [entry for entry in entries(journal) if entry.kind == BATCH][4]
    flip_bit(journal, damaged.position + damaged.size_bytes // 2)
    before = contents(data_of(broker))

    code, text = refusal(broker)

    assert code == CorruptedError.exit_code
    assert journal.name in text
    assert str(damaged.position) in text
    assert "Traceback" not in text
    assert contents(data_of(broker)) == before


@pytest.mark.parametrize("damage", ["flipped bit", "truncated"])
async def test_a_last_entry_that_is_damaged_after_a_clean_stop_stops_the_broker(
    damage: str, broker: BrokerProcess
) -> None:
    await write_some(broker)
    assert broker.stop() == 0
    journal = segments(data_of(broker))[-1]
    last = entries(journal)[-1]
    if damage == "truncated":
        with journal.open("r+b") as file:
            file.truncate(last.position + 100)
    else:
        flip_bit(journal, last.position + last.size_bytes // 2)
    before = contents(data_of(broker))

    code, text = refusal(broker)

    assert code == CorruptedError.exit_code
    assert journal.name in text
    assert str(last.position) in text
    assert contents(data_of(broker)) == before
    command = [sys.executable, "-m", "ister", "storage", "check", str(data_of(broker))]
    checked = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, timeout=WAIT_S, check=False
    )
    assert checked.returncode
    assert journal.name in (checked.stdout + checked.stderr).decode()


async def test_a_flipped_bit_in_a_sealed_file_costs_only_what_it_hit(broker: BrokerProcess) -> None:
    async with ister.connect(broker.url) as client:
        for topic in (TOPIC, OTHER):
            await client.create_topic(topic, kind="stream")
        async with (
            client.producer(TOPIC, name="p") as producer,
            client.producer(OTHER, name="p") as other,
        ):
            for _ in range(4):
                await producer.send(PAYLOAD)
                await other.send(b"other")
            for _ in range(40):
                await producer.send(PAYLOAD)
            await other.send(b"last")
    wait_until(lambda: len(segments(data_of(broker))) > 2, "files were sealed")
    broker.stop()
    sealed = segments(data_of(broker))[0]
    damaged = [e for e in entries(sealed) if e.kind == BATCH and e.size_bytes > len(PAYLOAD)][3]
    flip_bit(sealed, damaged.position + damaged.size_bytes // 2)

    broker.restart()

    assert await stored(broker, OTHER) == [b"other"] * 4 + [b"last"]
    async with ister.connect(broker.url) as client:
        async with client.reader(TOPIC, end=3) as reader:
            assert sum([len(batch) async for batch in reader]) == 3
        with pytest.raises(CorruptedError, match=sealed.name):
            await read_all(client)
        async with client.reader(TOPIC, start=4) as reader:
            assert sum([len(batch) async for batch in reader]) == 40
    assert readiness(broker)[0] == 200


# Who else is on the machine.


async def test_everything_in_the_data_folder_is_for_its_owner_alone(broker: BrokerProcess) -> None:
    await write_some(broker)
    async with ister.connect(broker.url) as client:
        await client.create_topic("/default/later", kind="timeline")
    data = data_of(broker)

    found = {path: path.stat().st_mode & 0o777 for path in (data, *data.rglob("*"))}
    assert {data / "lock", data / "timelines.db", data / "segments"} <= set(found)
    assert {path for path, mode in found.items() if mode & 0o077} == set()


# Two brokers.


async def test_a_second_broker_on_the_same_folder_is_refused_and_the_first_goes_on(
    broker: BrokerProcess,
) -> None:
    payloads = await write_some(broker)

    code, text = refusal(broker)

    assert code == StorageTakenError.exit_code == ConflictError.exit_code
    assert str(broker.pid) in text
    assert "Traceback" not in text
    assert await stored(broker) == payloads
    async with (
        ister.connect(broker.url) as client,
        client.producer(TOPIC, name="p") as producer,
    ):
        assert (await producer.send(b"next")).offset == len(payloads)
