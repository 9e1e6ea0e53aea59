"""Transactions of the asyncio client: what it sends, repeats and tells."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Literal, cast

import pytest

import ister
from ister.base import TopicReport
from ister.base.errors import (
    BadRequestError,
    GoingAwayError,
    IsterError,
    LeaseLostError,
    LimitReachedError,
    NotConnectedError,
    RequestTimeoutError,
    ShardMovedError,
    StorageFailedError,
    StorageUncertainError,
    TransactionError,
    WrongKindError,
)
from ister.client import Transaction
from ister.codec import Batch, encode
from ister.testing import MemoryTransport, VirtualClock, connect_pair, settle
from ister.wire import (
    AbortTransaction,
    BeginTransaction,
    CloseConsumer,
    Command,
    CommitTransaction,
    Connection,
    Done,
    Frame,
    GoingAway,
    Hello,
    ListTopics,
    Opcode,
    Subscribe,
    Subscribed,
    TopicNumber,
    Topics,
    TransactionCommitted,
    Welcome,
    control_frame,
    decode_command,
    error_reply,
    leased_frame,
)

OUT = "/default/out"
PARTS = "/default/parts"
NO_LEASE = 2**64 - 1
TIMEOUT_S = 30.0

# What goes wrong with a commit: the connection is cut before or after it is carried out, or
# nothing is answered.
Trouble = Literal["before", "after", "silence"]


class Log:
    """What brokers keep from one connection, and one life, to the next."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        # The word of each commit that came, with its acks and batches by topic.
        self.commits: list[tuple[str, list[tuple[int, int, int, int]], dict[str, list[bytes]]]] = []
        self.carried_out: dict[str, list[int]] = {}
        self.listings: list[str] = []
        self.life = 1
        self.leases: set[int] = set()
        # What happens to the next commits; then all goes well.
        self.troubles: list[Trouble] = []
        self.refusals: list[IsterError] = []
        # Whether consumers that come back wait for their answer, and those that do.
        self.slow = False
        self.late: list[Callable[[], None]] = []
        self.brokers: list[Broker] = []
        self.reachable = True

    def connect(self, timeout: float = TIMEOUT_S) -> ister.Client:
        """Return a client."""
        return ister.connect(
            "ister://b",
            clock=self.clock,
            connector=self._connector,
            busy_poll=0.0,
            timeout=timeout,
        )

    async def _connector(
        self, protocol: Callable[[], asyncio.BaseProtocol], address: tuple[str, int]
    ) -> MemoryTransport:
        if not self.reachable:
            raise ConnectionRefusedError("nobody listens")
        return connect_pair(protocol, lambda: Broker(self))

    def cut(self) -> None:
        """Cut the connection."""
        self.brokers[-1].transport.abort()


class Broker(asyncio.Protocol):
    """One connection to a broker that knows transactions and leases, and little else."""

    transport: MemoryTransport

    def __init__(self, log: Log) -> None:
        self._log = log
        self._connection = Connection(now_ms=0, heartbeat_ms=1_000_000)
        self._staged: dict[int, list[tuple[int, Batch]]] = {}
        # The transactions that are open, by channel.
        self.words: dict[int, str] = {}
        log.brokers.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("MemoryTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Act on frames."""
        for frame in self._connection.receive(data):
            self._on_frame(frame)

    def tell(self, command: Command, sequence: int = 0) -> None:
        """Send a command."""
        self.transport.write(control_frame(command, sequence=sequence))

    def deliver(self, channel: int, lease: int, base_offset: int, payloads: list[bytes]) -> None:
        """Deliver messages to a consumer."""
        self._log.leases.add(lease)
        batch = Batch(b"".join(encode(payloads)))
        batch.stamp(base_offset, 0)
        self.transport.writelines(leased_frame(channel, 1, batch, lease, 1, 600_000))

    def _on_frame(self, frame: Frame) -> None:
        opcode, channel, sequence, body = frame
        if opcode == Opcode.STAGE:
            self._staged[channel].append((sequence, Batch(body)))
        elif opcode == Opcode.CONTROL:
            self._on_command(sequence, decode_command(body))

    def _on_command(self, sequence: int, command: Command) -> None:
        match command:
            case Hello():
                self._connection.opened(64 * 1024 * 1024)
                self.tell(_welcome())
            case ListTopics(pattern=pattern):
                self._log.listings.append(pattern)
                names = [f"{PARTS}-part-{n}" for n in range(3)] if pattern == PARTS else [pattern]
                self.tell(Topics(rows=[_report(name) for name in names], after=""), sequence)
            case Subscribe():
                if self._log.slow:
                    self._log.late.append(lambda: self._subscribed(sequence))
                else:
                    self._subscribed(sequence)
            case BeginTransaction(channel=channel, transaction=word):
                self._staged[channel], self.words[channel] = [], word
                self.tell(Done(), sequence)
            case CommitTransaction():
                self._on_commit(sequence, command)
            case AbortTransaction(channel=channel):
                del self.words[channel]
                self.tell(Done(), sequence)
            case CloseConsumer():
                self.tell(Done(), sequence)

    def _subscribed(self, sequence: int) -> None:
        self.tell(Subscribed(active=True, leases=self._log.life), sequence)
        self.tell(TopicNumber(number=1, topic="/default/in"))

    def _on_commit(self, sequence: int, command: CommitTransaction) -> None:
        log = self._log
        word = self.words.pop(command.channel)
        batches: dict[str, list[bytes]] = {}
        for slot, batch in self._staged.pop(command.channel):
            batches.setdefault(command.topics[slot], []).extend(batch.payloads)
        log.commits.append((word, command.acks, batches))
        trouble = log.troubles.pop(0) if log.troubles else None
        if trouble == "before":
            self.transport.abort()
            return
        if trouble == "silence":
            return
        reply = self._carry_out(word, command, len(batches))
        if trouble == "after":
            self.transport.abort()
        elif isinstance(reply, IsterError):
            if isinstance(reply, GoingAwayError):
                self.tell(GoingAway(reason=reply.reason))
            self.tell(error_reply(reply), sequence)
        else:
            self.tell(TransactionCommitted(offsets=reply), sequence)

    def _carry_out(
        self, word: str, command: CommitTransaction, batches: int
    ) -> list[int] | IsterError:
        log = self._log
        if word in log.carried_out:
            return log.carried_out[word]
        if log.refusals:
            return log.refusals.pop(0)
        for _, lease, start, _ in command.acks:
            if lease not in log.leases:
                return LeaseLostError("/default/in", start)
        offsets = log.carried_out[word] = [100 * n for n in range(batches)]
        return offsets


def _welcome() -> Welcome:
    return Welcome(
        version=1,
        broker="b",
        session=1,
        codecs=["none"],
        message_bytes_max=1_000,
        batch_bytes_max=10_000,
        heartbeat_ms=1_000_000,
    )


def _report(name: str) -> TopicReport:
    return TopicReport(
        topic=name,
        kind="stream",
        partitions=0,
        producers=0,
        subscriptions=0,
        messages_in=0,
        bytes_in=0,
        messages_out=0,
        messages_dropped=0,
        next_offset=0,
    )


@pytest.fixture
def log() -> Log:
    """A broker nobody has talked to."""
    return Log()


@pytest.fixture
async def client(log: Log) -> AsyncIterator[ister.Client]:
    """A connected client."""
    async with log.connect() as client:
        yield client


async def receive(log: Log, sub: ister.Subscription, lease: int = 7) -> list[ister.Message]:
    """Deliver three messages under a lease, and receive them."""
    channel = next(iter(sub._client.link.session.subscriptions))
    log.brokers[-1].deliver(channel, lease, 40, [b"0", b"1", b"2"])
    return [await sub.receive() for _ in range(3)]


async def test_a_block_is_carried_out_at_its_end_in_one_go(log: Log, client: ister.Client) -> None:
    async with client.subscribe("/default/in", "work") as sub:
        messages = await receive(log, sub)
        async with client.transaction() as tx:
            tx.send(OUT, b"a")
            tx.send("/default/other", b"b", key="k", ttl=1.5)
            for msg in messages:
                tx.ack(msg)
            await settle()
            during = list(log.commits)

        [(_, acks, batches)] = log.commits
        assert during == []
        assert batches == {OUT: [b"a"], "/default/other": [b"b"]}
        assert [run[1:] for run in acks] == [(7, 40, 43)]
        assert tx.results == [ister.MessageId(OUT, 0), ister.MessageId("/default/other", 100)]
        # Nothing is left that the lease would be renewed for.
        assert messages[0].leased().left == 0


async def test_an_exception_in_the_block_sends_nothing(log: Log, client: ister.Client) -> None:
    tx = client.transaction()
    with pytest.raises(ZeroDivisionError):
        await _break(tx)
    await settle()

    assert log.commits == []
    assert tx.ended
    with pytest.raises(BadRequestError):
        _ = tx.results


async def _break(tx: Transaction) -> None:
    async with tx:
        tx.send(OUT, b"a")
        raise ZeroDivisionError


async def test_an_empty_block_asks_nothing(log: Log, client: ister.Client) -> None:
    async with client.transaction() as tx:
        pass

    assert log.commits == []
    assert len(tx.results) == 0


async def test_a_block_may_be_committed_before_its_end(log: Log, client: ister.Client) -> None:
    async with client.transaction() as tx:
        tx.send(OUT, b"a")
        await tx.commit()
        with pytest.raises(BadRequestError):
            tx.send(OUT, b"b")
        with pytest.raises(BadRequestError):
            await tx.commit()

    assert len(log.commits) == 1


async def test_every_transaction_has_a_word_of_its_own(log: Log, client: ister.Client) -> None:
    for _ in range(2):
        async with client.transaction() as tx:
            tx.send(OUT, b"a")

    assert len({word for word, _, _ in log.commits}) == 2


async def test_partitions_are_asked_for_once_and_go_around(log: Log, client: ister.Client) -> None:
    results: list[ister.MessageId] = []
    for _ in range(2):
        async with client.transaction() as tx:
            tx.send(PARTS, b"a")
            tx.send(PARTS, b"b")
        results += tx.results

    assert [mid.partition for mid in results] == [0, 1, 2, 0]
    assert log.listings == [PARTS]


async def test_partitions_are_asked_for_anew_after_a_refusal(
    log: Log, client: ister.Client
) -> None:
    log.refusals = [TransactionError("word", "topic is gone")]
    with pytest.raises(TransactionError):
        async with client.transaction() as tx:
            tx.send(PARTS, b"a")
    async with client.transaction() as tx:
        tx.send(PARTS, b"a")

    assert log.listings == [PARTS, PARTS]


@pytest.mark.parametrize("trouble", ["before", "after"])
async def test_a_commit_whose_answer_is_lost_is_repeated_and_happens_once(
    log: Log, client: ister.Client, trouble: Trouble
) -> None:
    log.troubles = [trouble]
    async with client.subscribe("/default/in", "work") as sub:
        messages = await receive(log, sub)
        tx = client.transaction()
        tx.send(OUT, b"a")
        tx.ack(messages[0])
        committing = asyncio.ensure_future(tx.commit())
        await log.clock.elapse(5.0)
        await committing

        first, second = log.commits
        assert first == second
        assert len(log.carried_out) == 1
        assert tx.results == [ister.MessageId(OUT, 0)]


async def test_a_repetition_waits_until_its_consumer_is_back(
    log: Log, client: ister.Client
) -> None:
    log.troubles, log.slow = ["before"], False
    async with client.subscribe("/default/in", "work") as sub:
        messages = await receive(log, sub)
        log.slow = True
        tx = client.transaction()
        tx.ack(messages[0])
        committing = asyncio.ensure_future(tx.commit())
        await log.clock.elapse(5.0)
        waited = len(log.commits)
        log.late.pop()()
        await settle()

        assert (waited, len(log.commits)) == (1, 2)
        await committing


@pytest.mark.parametrize("trouble", ["before", "after"])
async def test_void_leases_are_not_named_again_to_a_new_broker(
    log: Log, client: ister.Client, trouble: Trouble
) -> None:
    log.troubles = [trouble]
    async with client.subscribe("/default/in", "work") as sub:
        messages = await receive(log, sub)
        tx = client.transaction()
        tx.ack(messages[1])
        committing = asyncio.ensure_future(tx.commit())
        await settle()
        log.life = 2
        await log.clock.elapse(5.0)

        [(_, before, _), (_, after, _)] = log.commits
        assert [run[1:] for run in before] == [(7, 41, 42)]
        assert [run[1:] for run in after] == [(NO_LEASE, 41, 42)]
        if trouble == "after":
            await committing
        else:
            with pytest.raises(LeaseLostError) as caught:
                await committing
            assert caught.value.offset == 41


async def test_a_repetition_does_not_wait_for_a_consumer_that_was_closed(
    log: Log, client: ister.Client
) -> None:
    log.troubles = ["after"]
    async with client.subscribe("/default/in", "work") as sub:
        messages = await receive(log, sub)
        tx = client.transaction()
        tx.ack(messages[0])
        committing = asyncio.ensure_future(tx.commit())
        await settle()
    await log.clock.elapse(5.0)

    assert len(log.commits) == 2
    await committing


async def test_a_message_whose_lease_is_known_to_be_void_is_refused_at_once(
    log: Log, client: ister.Client
) -> None:
    async with client.subscribe("/default/in", "work") as sub:
        early, late, _ = await receive(log, sub)
        before = client.transaction()
        before.ack(early)
        log.life = 2
        log.cut()
        await log.clock.elapse(5.0)

        with pytest.raises(LeaseLostError):
            await before.commit()
        with pytest.raises(LeaseLostError) as caught:
            client.transaction().ack(late)
        assert (caught.value.topic, caught.value.offset) == ("/default/in", 41)
        assert log.commits == []


async def test_messages_of_live_topics_are_not_acknowledged(client: ister.Client) -> None:
    async with client.subscribe("/default/in", "work") as sub:
        session = client.link.session
        [channel] = session.subscriptions.values()
        batch = Batch(b"".join(encode([b"live"])))
        batch.topic = "/default/live"
        channel.inbox.on_deliver(batch)
        msg = await sub.receive()

        with pytest.raises(WrongKindError):
            client.transaction().ack(msg)


async def test_what_the_broker_says_against_it_is_raised_at_the_end_of_the_block(
    log: Log, client: ister.Client
) -> None:
    log.refusals = [TransactionError("word", "a reason")]
    with pytest.raises(TransactionError) as caught:
        async with client.transaction() as tx:
            tx.send(OUT, b"a")

    assert caught.value.reason == "a reason"
    assert len(log.commits) == 1


async def test_an_uncertain_commit_is_repeated_until_it_is_known_what_became_of_it(
    log: Log, client: ister.Client
) -> None:
    log.refusals = [StorageUncertainError("no disk"), StorageFailedError("still no disk")]
    tx = client.transaction()
    tx.send(OUT, b"a")
    committing = asyncio.ensure_future(tx.commit())
    await log.clock.elapse(5.0)
    await committing

    assert len(log.commits) == 3
    assert len({word for word, _, _ in log.commits}) == 1
    assert [one.offset for one in tx.results] == [0]


async def test_a_commit_that_stays_uncertain_says_so_after_the_timeout(
    log: Log, client: ister.Client
) -> None:
    log.refusals = [StorageUncertainError("no disk")] + [StorageFailedError("no disk")] * 100
    tx = client.transaction()
    tx.send(OUT, b"a")
    committing = asyncio.ensure_future(tx.commit())
    await log.clock.elapse(TIMEOUT_S + 1)

    with pytest.raises(StorageUncertainError):
        await committing


async def test_a_commit_stays_uncertain_when_another_broker_has_the_storage_by_then(
    log: Log, client: ister.Client
) -> None:
    log.refusals = [StorageUncertainError("no store"), ShardMovedError("object", "chunks/7")]
    tx = client.transaction()
    tx.send(OUT, b"a")

    with pytest.raises(StorageUncertainError):
        await asyncio.gather(tx.commit(), log.clock.elapse(5.0))


async def test_a_commit_that_was_refused_for_certain_is_not_repeated(
    log: Log, client: ister.Client
) -> None:
    log.refusals = [StorageFailedError("no disk")]
    with pytest.raises(StorageFailedError):
        async with client.transaction() as tx:
            tx.send(OUT, b"a")

    assert len(log.commits) == 1


async def test_a_broker_that_goes_away_is_waited_for(log: Log, client: ister.Client) -> None:
    log.refusals = [GoingAwayError("restart")]
    tx = client.transaction()
    tx.send(OUT, b"a")
    committing = asyncio.ensure_future(tx.commit())
    await log.clock.elapse(5.0)
    before = (len(log.commits), committing.done())
    log.cut()
    await log.clock.elapse(5.0)
    await committing

    assert before == (1, False)
    assert len(log.commits) == 2


@pytest.mark.parametrize("trouble", ["before", "silence"])
async def test_giving_up_says_that_the_outcome_is_unknown(
    log: Log, client: ister.Client, trouble: Trouble
) -> None:
    log.troubles = [trouble]
    tx = client.transaction()
    tx.send(OUT, b"a")
    committing = asyncio.ensure_future(tx.commit())
    await settle()
    log.reachable = False
    await log.clock.elapse(TIMEOUT_S - 1)
    early = committing.done()
    await log.clock.elapse(2.0)

    assert not early
    with pytest.raises(RequestTimeoutError) as caught:
        await committing
    assert "not known whether it was carried out" in str(caught.value)


async def test_what_was_never_sent_is_known_not_to_have_happened(
    log: Log, client: ister.Client
) -> None:
    async with client.transaction() as tx:
        tx.send(OUT, b"so that its partitions are known")
    tx = client.transaction()
    tx.send(OUT, b"a")
    log.reachable = False
    log.cut()
    await settle()
    committing = asyncio.ensure_future(tx.commit())
    await log.clock.elapse(TIMEOUT_S + 1)

    with pytest.raises(NotConnectedError):
        await committing
    assert len(log.commits) == 1


async def test_too_many_acknowledgements_for_a_frame_are_refused_before_anything_happens(
    log: Log, client: ister.Client
) -> None:
    count = 60_000
    async with client.subscribe("/default/in", "work") as sub:
        channel = next(iter(client.link.session.subscriptions))
        messages: list[ister.Message] = []
        for lease in (7, 8, 9, 10):
            log.brokers[-1].deliver(channel, lease, 2**40, [b""] * count)
            messages += await sub.fetch(count)
        tx = client.transaction()
        # Every other one: there are no runs.
        for msg in messages[::2]:
            tx.ack(msg)
        with pytest.raises(LimitReachedError, match="transaction_acks_max"):
            await tx.commit()
        await settle()
        left_open = dict(log.brokers[-1].words)
        async with client.transaction() as tx:
            tx.ack(messages[0])

        assert left_open == {}
        assert len(log.commits) == 1
