"""The answers of commits, for clients that retry a commit because the first answer was lost.

Always true:
- an answer is kept for `COMMIT_REMEMBERED_MS`, within the memory limits for one client and for all.
  Only time in which a broker runs counts, whatever happens to the wall clock of the machine.
  When one client is over its limit, its own oldest answers are dropped. When all clients together
  are over theirs, answers of the largest client are dropped. When all clients are small, answers of
  a client that has not committed for longest are dropped. So a client that commits little and often
  keeps its answers, however many client ids other clients use;
- every known client has at least one answer, and its name counts in bytes: so the memory limit also
  limits the number of clients;
- the work of dropping answers does not grow with the number of clients;
- applying a commit twice changes nothing.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from ister.base.limits import COMMIT_REMEMBERED_MS, COMMITS_BYTES_MAX, COMMITS_CLIENT_BYTES_MAX

# Measured memory of a commit besides its id and answer (an entry of a dictionary, the headers of
# two objects, an entry in the list of its client), and of a client besides its name.
COMMIT_OVERHEAD_BYTES = 160
CLIENT_OVERHEAD_BYTES = 250
# A client with less than 1/4,096 of all bytes is small: 64 KiB, or 300 commits.
SMALL_PART = 4_096
# Size classes: one for small clients, the last one for a client that has all bytes or more.
CLASS_COUNT = SMALL_PART.bit_length() + 1
# A client with at most so many commits, with answers of at most this size, is kept as a tuple.
FEW_COUNT = 32
FEW_ANSWER_BYTES = 1_024
# Dictionaries in place of one: with 400,000 clients one takes 60 ms to grow, each of 32 takes 2 ms.
PART_COUNT = 32
# Expired commits that are dropped at most for each commit that is added.
FORGOTTEN_AT_ONCE = 16
# Dropped ids stay in a client's list until there are at least so many, and half of the list.
GONE_COUNT_MIN = 32
# Rows of one step of a snapshot: 2 ms.
ROWS_AT_ONCE = 8_192

# Client, id of the transaction, answer.
Row = tuple[str, str, bytes]


class Answer(NamedTuple):
    """The answer to a commit: the base offset of each batch, and `each` as on the wire.

    `time_ms` is from `CommitAnswers.stamp`.
    """

    time_ms: int
    offsets: list[int]
    each: dict[int, list[int]]


# An answer is encoded as its time in 8 bytes, then MessagePack.
_TIME_BYTES = 8
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[list[int], dict[int, list[int]]]).decode


class _Client:
    """The commits of a client that has many, oldest first."""

    __slots__ = ("gone", "ids", "newest_ms", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.ids: list[str] = []
        # How many of the first ids are dropped.
        self.gone = 0
        self.size_bytes = size_bytes
        self.newest_ms = 0

    def __len__(self) -> int:
        return len(self.ids) - self.gone

    def drop_first(self) -> None:
        self.gone += 1
        if self.gone >= GONE_COUNT_MIN and self.gone * 2 >= len(self.ids):
            del self.ids[: self.gone]
            self.gone = 0


class CommitAnswers:
    """The answers of recent commits, by the id of the transaction."""

    __slots__ = (
        "_answers",
        "_began_ms",
        "_classes",
        "_clients",
        "_newest_ms",
        "_turn",
        "size_bytes",
    )

    def __init__(self) -> None:
        self.size_bytes = 0
        # The time of the newest answer.
        self._newest_ms = 0
        # What `stamp` adds to the monotonic time of this process.
        self._began_ms: int | None = None
        # By id. Encoded answers take a fifth of the memory of objects.
        self._answers: list[dict[str, bytes]] = [{} for _ in range(PART_COUNT)]
        # The client that committed last is at the end. The ids of a client with few commits are a
        # tuple, which the garbage collector does not partition: 400,000 lists would take it 0.2 s.
        self._clients: list[OrderedDict[str, tuple[str, ...] | _Client]] = [
            OrderedDict() for _ in range(PART_COUNT)
        ]
        # The dictionary whose turn it is to drop an idle client.
        self._turn = 0
        # The clients that are not small, by size. Clients of a class are twice as large as those of
        # the class before. The first class is empty.
        self._classes: list[OrderedDict[str, None]] = [OrderedDict() for _ in range(CLASS_COUNT)]

    def __len__(self) -> int:
        return sum(map(len, self._answers))

    @property
    def client_count(self) -> int:
        """How many clients are known."""
        return sum(map(len, self._clients))

    def __contains__(self, transaction_id: str) -> bool:
        return transaction_id in self._answers[hash(transaction_id) % PART_COUNT]

    def stamp(self, monotonic_ms: int) -> int:
        """Return the time for an answer that is added now.

        It continues from the newest answer that a former process added.
        """
        if self._began_ms is None:
            self._began_ms = self._newest_ms - monotonic_ms
        return self._began_ms + monotonic_ms

    def find(self, transaction_id: str) -> Answer | None:
        """Return the answer to the commit under this id, if it is known."""
        answer = self._answers[hash(transaction_id) % PART_COUNT].get(transaction_id)
        if answer is None:
            return None
        return Answer(_time_ms(answer), *_decode(memoryview(answer)[_TIME_BYTES:]))

    def add(
        self,
        client: str,
        transaction_id: str,
        time_ms: int,
        offsets: list[int],
        each: dict[int, list[int]],
    ) -> None:
        """Add the answer to a commit, and drop answers that are expired or over a limit."""
        if transaction_id not in self:
            self._add(
                client, transaction_id, time_ms.to_bytes(_TIME_BYTES) + _encode((offsets, each))
            )

    def _add(self, client: str, transaction_id: str, answer: bytes) -> None:
        time_ms = _time_ms(answer)
        self._newest_ms = max(self._newest_ms, time_ms)
        self._answers[hash(transaction_id) % PART_COUNT][transaction_id] = answer
        clients = self._clients[hash(client) % PART_COUNT]
        line = clients.get(client, ())
        if line:
            clients.move_to_end(client)
        else:
            self.size_bytes += CLIENT_OVERHEAD_BYTES + len(client)
        if isinstance(line, tuple):
            if len(line) < FEW_COUNT and len(answer) <= FEW_ANSWER_BYTES:
                clients[client] = (*line, transaction_id)
                self.size_bytes += _size_bytes(transaction_id, answer)
                self._forget(client, time_ms)
                return
            line = clients[client] = self._unfold(client, line)
        line.ids.append(transaction_id)
        line.newest_ms = max(line.newest_ms, time_ms)
        self._resize(client, line, _size_bytes(transaction_id, answer))
        while line.size_bytes > COMMITS_CLIENT_BYTES_MAX and len(line) > 1:
            self._forget_first(client)
        self._forget(client, time_ms)

    def _unfold(self, client: str, few: tuple[str, ...]) -> _Client:
        line = _Client(CLIENT_OVERHEAD_BYTES + len(client))
        for transaction_id in few:
            answer = self._answer(transaction_id)
            line.ids.append(transaction_id)
            line.newest_ms = max(line.newest_ms, _time_ms(answer))
            line.size_bytes += _size_bytes(transaction_id, answer)
        number = _class_of(line.size_bytes)
        if number:
            self._classes[number][client] = None
        return line

    def _forget(self, client: str, time_ms: int) -> None:
        """Drop answers over the limit, then expired ones of this client and of idle clients."""
        while self.size_bytes > COMMITS_BYTES_MAX and self.client_count:
            self._forget_first(self._client_to_trim())
        clients = self._clients[hash(client) % PART_COUNT]
        before_ms = time_ms - COMMIT_REMEMBERED_MS
        for _ in range(FORGOTTEN_AT_ONCE):
            line = clients.get(client)
            if line is None or _time_ms(self._answer(_first(line))) >= before_ms:
                break
            self._forget_first(client)
        # Idle clients add nothing themselves: check the dictionaries in turn for them.
        self._turn = (self._turn + 1) % PART_COUNT
        clients = self._clients[self._turn]
        for _ in range(FORGOTTEN_AT_ONCE):
            silent = next(iter(clients), None)
            if silent is None or self._newest_of(clients[silent]) >= before_ms:
                break
            self._forget_first(silent)

    def _answer(self, transaction_id: str) -> bytes:
        return self._answers[hash(transaction_id) % PART_COUNT][transaction_id]

    def _client_to_trim(self) -> str:
        """Return one of the largest clients or, when all are small, one that is idle for longest.

        That is the client idle for longest of one dictionary. The dictionaries take turns.
        """
        for clients in reversed(self._classes):
            if clients:
                return next(iter(clients))
        while True:
            self._turn = (self._turn + 1) % PART_COUNT
            if self._clients[self._turn]:
                return next(iter(self._clients[self._turn]))

    def _newest_of(self, line: tuple[str, ...] | _Client) -> int:
        if isinstance(line, tuple):
            return _time_ms(self._answer(line[-1]))
        return line.newest_ms

    def _forget_first(self, client: str) -> None:
        clients = self._clients[hash(client) % PART_COUNT]
        line = clients[client]
        transaction_id = _first(line)
        size_bytes = _size_bytes(
            transaction_id, self._answers[hash(transaction_id) % PART_COUNT].pop(transaction_id)
        )
        if isinstance(line, tuple):
            self.size_bytes -= size_bytes
            line = clients[client] = line[1:]
        else:
            line.drop_first()
            self._resize(client, line, -size_bytes)
        if not len(line):
            del clients[client]
            if isinstance(line, _Client):
                self._classes[_class_of(line.size_bytes)].pop(client, None)
            self.size_bytes -= CLIENT_OVERHEAD_BYTES + len(client)

    def _resize(self, client: str, line: _Client, by_bytes: int) -> None:
        before = _class_of(line.size_bytes)
        line.size_bytes += by_bytes
        self.size_bytes += by_bytes
        after = _class_of(line.size_bytes)
        if after != before:
            self._classes[before].pop(client, None)
            if after:
                self._classes[after][client] = None

    # Snapshots

    def rows(self) -> Iterator[list[Row]]:
        """Yield all rows, some at a time.

        Rows that are added or dropped between two steps may or may not be included.
        """
        rows: list[Row] = []
        for client in [client for part in self._clients for client in part]:
            line = self._clients[hash(client) % PART_COUNT].get(client)
            ids = line.ids[line.gone :] if isinstance(line, _Client) else line or ()
            for transaction_id in ids:
                answer = self._answers[hash(transaction_id) % PART_COUNT].get(transaction_id)
                if answer is not None:
                    rows.append((client, transaction_id, answer))
                if len(rows) >= ROWS_AT_ONCE:
                    yield rows
                    rows = []
        if rows:
            yield rows

    def restore(self, rows: Sequence[Row]) -> None:
        """Add the rows that `rows` yielded. Raises `ValueError` for other bytes."""
        for client, transaction_id, answer in rows:
            # Raises msgspec's own error if this is not an answer.
            _decode(memoryview(answer)[_TIME_BYTES:])
            if transaction_id not in self:
                self._add(client, transaction_id, answer)


def _first(line: tuple[str, ...] | _Client) -> str:
    return line[0] if isinstance(line, tuple) else line.ids[line.gone]


def _size_bytes(transaction_id: str, answer: bytes) -> int:
    return COMMIT_OVERHEAD_BYTES + len(transaction_id) + len(answer)


def _class_of(size_bytes: int) -> int:
    """Return the size class of a client; small clients have class 0."""
    return min((size_bytes * SMALL_PART // COMMITS_BYTES_MAX).bit_length(), CLASS_COUNT - 1)


def _time_ms(answer: bytes) -> int:
    return int.from_bytes(answer[:_TIME_BYTES])
