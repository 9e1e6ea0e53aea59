"""Messages on their way, for asyncio: what `send_nowait` and `send_batch_nowait` return."""

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from ister.base.errors import BadRequestError, IsterError
from ister.client.session import MessageId, MessageIds, PendingBatch, Sent


class SendFuture(Sent, gc=False):
    """A message on its way. Await it for its `MessageId`, as often as you like, or not at all."""

    def __await__(self) -> Generator[Any, None, MessageId]:
        if not self.batch.done:
            yield from _done(self.batch).__await__()
        return self.result()

    def add_done_callback(self, callback: "Callable[[SendFuture], object]") -> None:
        """Call `callback` with this future once it is done, soon if it is."""
        # Always through the loop: a callback that raises must not disturb the others of its batch.
        loop = asyncio.get_running_loop()
        if self.batch.done:
            loop.call_soon(callback, self)
        else:
            self.batch.on_done(lambda: loop.call_soon(callback, self))


class BatchFuture:
    """Many messages on their way; await it for the ids of all."""

    __slots__ = ("_places", "_sent")

    def __init__(self, sent: list[Sent], places: list[int] | None = None) -> None:
        """`sent` is the last message of each batch; for `places` see `MessageIds`."""
        self._sent = sent
        self._places = places

    def done(self) -> bool:
        """Whether the broker has acknowledged or refused all of them."""
        return all(sent.done() for sent in self._sent)

    def __await__(self) -> Generator[Any, None, MessageIds]:
        """Return the ids in the order of the messages, or raise the first error, when all is done.

        Messages travel in several batches when they are many. When one of those is refused,
        `results` tells what became of the others.
        """
        for sent in self._sent:
            if not sent.batch.done:
                yield from _done(sent.batch).__await__()
            sent.batch.awaited = True
        for sent in self._sent:
            sent.result()
        stored = [sent.batch.stored(sent.slot + 1) for sent in self._sent]
        return MessageIds(stored, self._places)

    def results(self) -> list[MessageId | IsterError]:
        """Return what became of each message, once all are done: its id, or its error."""
        if not self.done():
            raise BadRequestError("not all of the messages are acknowledged yet: await them")
        results: list[MessageId | IsterError] = []
        for sent in self._sent:
            if (error := sent.exception()) is not None:
                sent.batch.awaited = True
                results += [error] * (sent.slot + 1)
            else:
                results += MessageIds([sent.batch.stored(sent.slot + 1)])
        return results if self._places is None else [results[place] for place in self._places]


def _done(batch: PendingBatch) -> "asyncio.Future[None]":
    """Return a future of one's own for a batch: cancelling it disturbs nobody else."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    batch.wait(waiter)
    return waiter


class Deadline:
    """The end of a wait, as a timer calls it; `end` is told why, if it is not the time."""

    __slots__ = ("_end",)

    def __init__(self, end: Callable[[IsterError | None], object]) -> None:
        self._end = end

    def __call__(self) -> None:
        self._end(None)

    def on_frozen(self, error: IsterError) -> None:
        """The clock is that of a test, and stands still."""
        self._end(error)
