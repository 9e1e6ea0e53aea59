"""Stages of the asyncio client: batches that are sent now, and published once, later."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TypeVar

from ister.base.errors import (
    BadRequestError,
    BatchTooLargeError,
    ConnectionLostError,
    IsterError,
    StageTooLargeError,
)
from ister.base.limits import STAGE_KEEP_MS_MAX, STAGE_KEEP_MS_MIN, STAGE_TOPICS_MAX
from ister.client.aio.connection.link import BrokerLink, settler
from ister.client.session import Seconds, check_text, check_topic, milliseconds
from ister.wire import (
    CloseStage,
    Command,
    Connection,
    Done,
    DropStages,
    Opcode,
    OpenStage,
    PublishStages,
    StageClosed,
    StagesPublished,
    publish_frame,
)

# As `ister.codec.encode` returns it.
Encoded = tuple[bytes, bytes]

_R = TypeVar("_R")


class Stage:
    """Batches for streams that wait in the broker, seen by nobody, until they are published.

    Use it with `async with client.stage("a word for this attempt")`, or call `open` and `close`.
    Once closed it outlives this client, and is published by whoever knows its word. What is not
    closed when the connection is lost is gone; so it is when the block ends with an exception.

    >>> from ister.codec import encode
    >>> async with client.stage("attempt-1") as stage:
    ...     await stage.add("/default/out", encode([b"one", b"two"]))
    >>> await client.publish_stages(["attempt-1"], series="query", number=1)
    StagesPublished(repeated=False, messages=2, overtaken=False)
    """

    def __init__(self, link: BrokerLink, word: str, keep: Seconds) -> None:
        self.word = check_text(word, "the word of a stage")
        self._keep_ms = milliseconds(
            keep, "keep", least_ms=STAGE_KEEP_MS_MIN, most_ms=STAGE_KEEP_MS_MAX
        )
        self._link = link
        self._channel = 0
        # It lives with the connection it was opened on.
        self._connection: Connection | None = None
        self._slots: dict[str, int] = {}
        # The answer to its opening, which only `open` waits for.
        self._opening: asyncio.Future[Command] | None = None
        self._ended = False
        self._report: StageClosed | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abandon()
        elif not self._ended:
            await self.close()

    @property
    def ended(self) -> bool:
        """Whether it was closed or given up, or that is under way."""
        return self._ended

    async def open(self) -> None:
        """Begin it; nothing happens when it is open.

        Raises `StageExistsError` when there is a stage of that word.
        """
        await self._begin()
        opening = self._opening
        assert opening is not None
        try:
            await asyncio.shield(opening)
        except IsterError:
            self._ended = True
            raise

    async def _begin(self) -> None:
        """Send what opens it; what is said about that comes before anything else is answered."""
        if self._connection is not None:
            return
        await self._link.wait_open()
        session = self._link.session
        self._connection = session.connection
        self._channel = session.new_channel()
        command = OpenStage(channel=self._channel, stage=self.word, keep_ms=self._keep_ms)
        self._opening = asyncio.get_running_loop().create_future()
        # Who gives the stage up asks no more.
        self._opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        session.call(command, settler(self._opening))

    @property
    def _refusal(self) -> BaseException | None:
        opening = self._opening
        return opening.exception() if opening is not None and opening.done() else None

    async def add(self, topic: str, batch: Encoded) -> None:
        """Add a batch, as `ister.codec.encode` returns it, for a stream or one of its partitions.

        Waits while more than 8 MiB are not sent. What the broker has against a batch is told by
        `close`. Raises `ConnectionLostError` when the stage is gone with its connection: stage
        all of it again, under another word.
        """
        await self._begin()
        self._check()
        head, body = batch
        welcome = self._link.session.welcome
        if welcome is not None and len(head) + len(body) > welcome.batch_bytes_max:
            raise BatchTooLargeError(len(head) + len(body), welcome.batch_bytes_max)
        topic = check_topic(topic)
        slot = self._slots.setdefault(topic, len(self._slots))
        if slot >= STAGE_TOPICS_MAX:
            del self._slots[topic]
            raise StageTooLargeError("topics", slot + 1, STAGE_TOPICS_MAX)
        frame = publish_frame(self._channel, slot, head, body, opcode=Opcode.STAGE)
        self._link.session.connection.send_all(frame)
        self._link.flush()
        await self._link.wait_sent()

    async def close(self) -> StageClosed:
        """Return how much waits to be published, once all of it does. Harmless when closed.

        Raises what is wrong with one of the batches, or its topic; then nothing of it is staged.
        """
        if self._report is not None:
            return self._report
        await self._begin()
        self._check()
        self._ended = True
        command = CloseStage(channel=self._channel, topics=list(self._slots))
        try:
            self._report = await self._call(command, StageClosed)
        except IsterError:
            # It says that there is no such stage; why there is none was said before.
            if (refusal := self._refusal) is not None:
                raise refusal from None
            raise
        return self._report

    def abandon(self) -> None:
        """Have the broker forget it, as an exception in the block does."""
        opening, self._ended = self._opening, True
        if opening is not None and self._report is None:
            # Whatever has this word when it was refused is not ours to abandon.
            opening.add_done_callback(lambda _: self._drop())

    def _drop(self) -> None:
        if self._refusal is None and self._is_connected:
            self._link.session.call(DropStages(stages=[self.word]), lambda _: None)
            self._link.write()

    @property
    def _is_connected(self) -> bool:
        session = self._link.session
        return session.can_answer and session.connection is self._connection

    def _check(self) -> None:
        if (refusal := self._refusal) is not None:
            self._ended = True
            raise refusal
        if self._ended:
            raise BadRequestError(f"stage {self.word!r} has ended: open another one")
        if not self._is_connected:
            self._ended = True
            raise ConnectionLostError(f"stage {self.word!r} was open on it")

    async def _call(self, command: Command, expect: type[_R]) -> _R:
        """Send a command on this very connection: on the next one it makes no sense."""
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._link.session.call(command, settler(future))
        reply = await future
        if not isinstance(reply, expect):
            raise BadRequestError(f"broker answered {type(reply).__name__}")
        return reply


async def stage_batches(stage: Stage, batches: Sequence[tuple[str, Encoded]]) -> StageClosed:
    """Stage batches at once: see `Client.stage_batches`."""
    try:
        for topic, batch in batches:
            await stage.add(topic, batch)
        return await stage.close()
    except BaseException:
        stage.abandon()
        raise


async def publish_stages(
    link: BrokerLink, stages: Sequence[str], series: str, number: int
) -> StagesPublished:
    """Publish stages: see `Client.publish_stages`."""
    if isinstance(stages, str):
        raise BadRequestError(f"stages is a list of words, as [{stages!r}]")
    command = PublishStages(stages=list(stages), series=series, number=number)
    return await link.call(command, StagesPublished)


async def drop_stages(link: BrokerLink, stages: Sequence[str]) -> None:
    """Forget stages: see `Client.drop_stages`."""
    if isinstance(stages, str):
        raise BadRequestError(f"stages is a list of words, as [{stages!r}]")
    await link.call(DropStages(stages=list(stages)), Done)
