"""The reader of the blocking client."""

from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ister.client import aio
from ister.client.sync.blocking import Blocking, blocking
from ister.codec import Batch

if TYPE_CHECKING:
    from ister.client.sync.client import Client


class Reader(Blocking[aio.Reader]):
    """Reads what a stream holds. Use it with `with client.reader(...)`, in one thread.

    Batches of one topic or partition come in the order of their offsets; those of several
    partitions as they come. After a lost connection it goes on where it was.

    >>> client.create_topic("/default/ledger", kind="stream")
    >>> with client.producer("/default/ledger") as producer:
    ...     ids = producer.send_batch([b"one", b"two"])
    >>> with client.reader("/default/ledger", start=0, end="latest") as reader:
    ...     for batch in reader:
    ...         print(batch.offsets, batch.payloads)
    range(0, 2) [b'one', b'two']
    """

    def __init__(self, client: "Client", inner: aio.Reader) -> None:
        super().__init__(client.thread, inner)
        # A client that nobody holds any more is closed.
        self._client = client
        self.topic = inner.topic
        # As in `aio.Reader`.
        self.ranges = inner.ranges
        self.numbers = inner.numbers
        # What has come over and was not yielded: it survives a `break`.
        self._arrived: deque[Batch] = deque()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    open = blocking(aio.Reader.open)
    fetch_batches = blocking(aio.Reader.fetch_batches)
    values = blocking(aio.Reader.values)
    to_arrow = blocking(aio.Reader.to_arrow)

    def close(self) -> None:
        """Stop reading. Harmless when closed."""
        if not self._thread.closed:
            self._thread.run(self._inner.close())

    def __iter__(self) -> Iterator[Batch]:
        while True:
            while self._arrived:
                yield self._arrived.popleft()
            batches = self.fetch_batches()
            if not batches:
                return
            self._arrived.extend(batches)
