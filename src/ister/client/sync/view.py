"""Views of the blocking client: the last value of every key of a stream."""

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ister.client import aio
from ister.client.sync.reader import Reader

if TYPE_CHECKING:
    from ister.client.sync.client import Client


class View(Mapping[str, bytes]):
    """Payloads by key: read-only, and as it was when it was made, unless it is watched.

    A message without a payload removes its key; one without a key says nothing about any.
    """

    def __init__(self, client: "Client", inner: aio.View) -> None:
        self._client = client
        self._inner = inner

    def __getitem__(self, key: str) -> bytes:
        return self._inner[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)

    def __repr__(self) -> str:
        return repr(self._inner)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """There is nothing to close."""

    def entry(self, key: str) -> aio.ViewEntry:
        """Return the message of a key with all there is to it; raise `KeyError`."""
        return self._inner.entry(key)

    @property
    def next_offset(self) -> int:
        """The offset behind the last message that the view was made of: see `ister.View`."""
        return self._inner.next_offset

    def watch(self) -> Iterator[aio.ViewChange]:
        """Yield each message with a key that is not in the view yet, and have the view follow.

        It goes on with what is published, until the loop over it is left; another `watch` begins
        where that was. The view is as of the change that was yielded last.

        >>> client.create_topic("/default/rates", kind="stream")
        >>> view = client.view("/default/rates")
        >>> mid = client.publish("/default/rates", b"1.08", key="EUR")
        >>> for change in view.watch():
        ...     print(change.key, view[change.key])
        ...     break
        EUR b'1.08'
        """
        with Reader(self._client, self._inner.follower()) as reader:
            for batch in reader:
                yield from self._inner.take(batch)
