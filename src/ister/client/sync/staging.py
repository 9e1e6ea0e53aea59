"""Stages of the blocking client."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

from ister.client import aio
from ister.client.sync.blocking import Blocking, blocking

if TYPE_CHECKING:
    from ister.client.sync.client import Client


class Stage(Blocking[aio.Stage]):
    """Batches for streams that wait in the broker, seen by nobody, until they are published.

    Use it with `with client.stage("a word for this attempt")`, or call `open` and `close`, in one
    thread. Once closed it outlives this client, and is published by whoever knows its word. What
    is not closed when the connection is lost is gone; so it is when the block ends with an
    exception.

    >>> from ister.codec import encode
    >>> with client.stage("attempt-1") as stage:
    ...     stage.add("/default/out", encode([b"one", b"two"]))
    >>> client.publish_stages(["attempt-1"], series="query", number=1)
    StagesPublished(repeated=False, messages=2, overtaken=False)
    """

    def __init__(self, client: "Client", inner: aio.Stage) -> None:
        super().__init__(client.thread, inner)
        # A client that nobody holds any more is closed.
        self._client = client
        self.word = inner.word

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abandon()
        elif not self.ended:
            self.close()

    @property
    def ended(self) -> bool:
        """Whether it was closed or given up, or that is under way."""
        return self._inner.ended

    open = blocking(aio.Stage.open)
    add = blocking(aio.Stage.add)
    close = blocking(aio.Stage.close)

    def abandon(self) -> None:
        """Have the broker forget it, as an exception in the block does."""
        if not self._thread.closed:
            self._thread.post(self._inner.abandon)
