"""The message ids of the last while: what a stream was sent before, and where it stored that.

Always true:
- ids are forgotten in the order they came. An id that comes again after its time stands in that
  order twice, and is forgotten with the second;
- an id takes about 170 B, however long it is: its key is kept, which for a long id is a digest of
  128 bits;
- all windows of a broker together have at most as many ids as their `SharedBudget` says.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from hashlib import blake2b

from ister.base.errors import LimitReachedError
from ister.base.limits import BATCH_ID_BYTES_MAX, BATCH_IDS_MAX, DEDUP_IDS_MAX
from ister.broker.state.shared_budget import FORGET_COUNT, SharedBudget
from ister.codec import Batch, Column

# Ids that are kept together: one step of a snapshot, of about 3 ms.
CHUNK_COUNT = 4_096
# Ids up to this length are kept as they are: a UUID has 36 characters, and a digest would cost more
# time than the rest.
ID_KEPT_CHARS = 40
DIGEST_BYTES = 16
# An offset and a time, as one number: two, and what holds them together, would take 80 B more.
_TIME_BITS = 48
_TIME_MASK = (1 << _TIME_BITS) - 1
# No id is as young as this.
ALL_TIMES_MS = 1 << _TIME_BITS


class MessageIds:
    """The message ids of one stream, within its dedup window."""

    __slots__ = ("_again", "_budget", "_chunks", "_ids", "counted")

    def __init__(self, budget: SharedBudget) -> None:
        # `None` when the stream is gone.
        self._budget: SharedBudget | None = budget
        # The budget's own: how many ids it knows of.
        self.counted = 0
        # id → offset and time of storing
        self._ids: dict[str, int] = {}
        # In the order they came. In chunks, because a snapshot goes over them bit by bit, while
        # others come and go.
        self._chunks: deque[deque[str]] = deque()
        # How often an id stands there too often.
        self._again: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def size(self) -> int:
        """How many ids there are."""
        return len(self._ids)

    def find(self, key: str, *, newer_than_ms: int) -> int | None:
        """Return the offset of the message whose id has this key, if it is not too long ago."""
        found = self._ids.get(key)
        if found is None or found & _TIME_MASK <= newer_than_ms:
            return None
        return found >> _TIME_BITS

    def add(self, key: str, offset: int, time_ms: int) -> None:
        """Remember the key of an id. Adding it again changes nothing."""
        known, place = self._ids.get(key), offset << _TIME_BITS | time_ms
        if known == place:
            return
        if known is not None:
            self._again[key] += 1
        self._ids[key] = place
        if not self._chunks or len(self._chunks[-1]) >= CHUNK_COUNT:
            self._chunks.append(deque())
        self._chunks[-1].append(key)

    def settle(self, added: int, *, older_than_ms: int) -> None:
        """Forget what is too old, and the oldest of too many, after some ids were added.

        That is in proportion to what was added: of very many that are too old, some are left.
        """
        self._forget(2 * added + FORGET_COUNT, older_than_ms)
        self._recount()

    def forget(self, *, older_than_ms: int) -> Iterator[None]:
        """Forget all that is too old, step by step."""
        while self._forget(FORGET_COUNT, older_than_ms):
            self._recount()
            yield
        self._recount()

    def forget_oldest(self, size: int) -> None:
        """Forget some ids before their time, all of them at most."""
        end = max(len(self._ids) - size, 0)
        while len(self._ids) > end:
            self._pop_oldest()

    def close(self) -> None:
        """The stream is gone: nothing of it counts any more."""
        if self._budget is not None:
            self._budget.remove(self)
            self._budget = None

    def _recount(self) -> None:
        if self._budget is not None:
            self._budget.on_changed(self)

    def _forget(self, count: int, older_than_ms: int) -> bool:
        """Look at some of the oldest; return whether there may be more to forget."""
        ids, chunks = self._ids, self._chunks
        for _ in range(count):
            if not chunks:
                return False
            oldest = chunks[0][0]
            if oldest not in self._again and ids[oldest] & _TIME_MASK >= older_than_ms:
                if len(ids) <= DEDUP_IDS_MAX:
                    return False
                if self._budget is not None:
                    self._budget.forgotten += 1
            self._pop_oldest()
        return True

    def _pop_oldest(self) -> None:
        chunks, again = self._chunks, self._again
        oldest = chunks[0].popleft()
        if not chunks[0]:
            chunks.popleft()
        if oldest in again:
            again[oldest] -= 1
            if not again[oldest]:
                del again[oldest]
        else:
            del self._ids[oldest]

    def rows(self) -> Iterator[list[tuple[str, int, int]]]:
        """Yield keys with their offsets and times, some at a time.

        What comes or goes between two steps may be among them or not.
        """
        ids = self._ids
        for chunk in list(self._chunks):
            yield [(i, ids[i] >> _TIME_BITS, ids[i] & _TIME_MASK) for i in chunk if i in ids]


def key_of(message_id: str) -> str:
    """Return the key of an id: the id, or a digest of a long one.

    Nobody but who knows the digest would choose an id that equals it.
    """
    if len(message_id) <= ID_KEPT_CHARS:
        return message_id
    digest = blake2b(message_id.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()
    return "\0" + digest.decode("latin-1")


def check_ids(batch: Batch) -> None:
    """Raise `LimitReachedError` for a batch with too many ids to be looked for in one go."""
    if batch.columns & Column.ID:
        if batch.count > BATCH_IDS_MAX:
            raise LimitReachedError("batch_ids_max", BATCH_IDS_MAX)
        if batch.id_bytes > BATCH_ID_BYTES_MAX:
            raise LimitReachedError("batch_id_bytes_max", BATCH_ID_BYTES_MAX)


def keys_of(message_ids: Iterable[str | None]) -> list[str | None]:
    """Return the key of each message's id, `None` for a message without one."""
    return [None if message_id is None else key_of(message_id) for message_id in message_ids]
