"""A store on a disk that has no room from some write on: what it says must be what it has.

Run as a program below the library that `FULL` is compiled to, with a folder, a seed and a stride:
one life without a fault, then one for each of the first and every `stride`-th later write in each
of these ways:

    once     that write fails, and half of it is on the disk
    lasting  so do all that follow
    growth   all that follow fail if they make a file longer: what is allocated can be written

In each life: a change that was refused with `DiskFullError` was not made; one that stores no more
than before is refused only while all writes fail; the first message after the disk has room again
is taken; and everything that was told to be done is there, also when the file is opened again.
"""

import ctypes
import shutil
import sqlite3
import sys
from pathlib import Path
from random import Random

from ister.base.errors import DiskFullError, IsterError, StorageFailedError
from ister.timeline import (
    FILE_NAME,
    Change,
    Changed,
    Delete,
    Done,
    Lease,
    Move,
    Put,
    Row,
    SqliteStore,
    Update,
    Work,
)

WAYS = ("once", "lasting", "growth")
STEPS = 50
# Writes while the file is made, each of which fails in some life.
BEGINNING = 60
NOW_MS = 1_000_000
START = (-(2**62), 0)
END = 2**62 - 1
RESERVE_BYTES = 256 * 1024
GROWING = (Put, Update)

FULL = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { ONCE, LASTING, GROWTH };
static long count, at = -1;
static int way;

void fail_writes(long number, int which) { count = 0; at = number; way = which; }
long count_writes(void) { return count; }

static int fails(int fd, off_t end) {
    struct stat found;
    if (fstat(fd, &found) || !S_ISREG(found.st_mode)) return 0;
    long number = count++;
    if (at < 0 || number < at || (way == ONCE && number > at)) return 0;
    return way != GROWTH || end > found.st_size;
}

static ssize_t full(void) { errno = ENOSPC; return -1; }

#define WRITE(name)                                                               \
    ssize_t name(int fd, const void *from, size_t size, off_t position) {        \
        ssize_t (*real)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, #name); \
        if (!fails(fd, position + size)) return real(fd, from, size, position);  \
        if (way == ONCE) real(fd, from, size / 2, position);                     \
        return full();                                                           \
    }
WRITE(pwrite)
WRITE(pwrite64)

static off_t end_of(const struct iovec *from, int parts, off_t position) {
    while (parts--) position += from[parts].iov_len;
    return position;
}

#define WRITE_PARTS(name)                                                         \
    ssize_t name(int fd, const struct iovec *from, int parts, off_t position, int flags) { \
        ssize_t (*real)(int, const struct iovec *, int, off_t, int) = dlsym(RTLD_NEXT, #name); \
        if (!fails(fd, end_of(from, parts, position)))                            \
            return real(fd, from, parts, position, flags);                       \
        return full();                                                           \
    }
WRITE_PARTS(pwritev2)
WRITE_PARTS(pwritev64v2)

#define ALLOCATE(name)                                                            \
    int name(int fd, off_t position, off_t size) {                               \
        int (*real)(int, off_t, off_t) = dlsym(RTLD_NEXT, #name);                \
        return fails(fd, position + size) ? ENOSPC : real(fd, position, size);   \
    }
ALLOCATE(posix_fallocate)
ALLOCATE(posix_fallocate64)
"""


class Life:
    """A store, and what was told of it."""

    def __init__(self, file: Path, seed: int, way: str) -> None:
        self.store = SqliteStore(file, busy_timeout_s=0.0, reserve_bytes=RESERVE_BYTES)
        self.way = way
        self.refusals = 0
        self._lot = Random(seed)
        self._count = 0
        self._topic = 0
        self._payloads: dict[str, bytes] = {}
        # What is leased, with its version.
        self._leased: dict[str, int] = {}
        # Nobody knows what became of these.
        self._doubtful: set[str] = set()

    def live(self) -> None:
        acts = {
            self.put: 6,
            self.put_many: 3,
            self.lease: 5,
            self.finish: 5,
            self.delete: 2,
            self.move: 2,
            self.update: 2,
            self.transact: 2,
            self.look: 2,
            self.close: 1,
        }
        for _ in range(STEPS):
            try:
                self.begin()
                self._lot.choices([*acts], [*acts.values()])[0]()
            except DiskFullError:
                # Before there is a file, there is no reserve for it.
                assert self.way != "once" or not self._topic

    def begin(self) -> None:
        if not self._topic:
            topics = self.store.topics() or [self.store.create_topic("/default/a", "timeline", b"")]
            self._topic = topics[0].number

    # Steps

    def put(self) -> None:
        self.act([self.new()])

    def put_many(self) -> None:
        self.act([self.new() for _ in range(self._lot.randint(2, 30))])

    def lease(self) -> None:
        found = self.store.scan(self._topic, 0, START, END, 5)
        until_ms = NOW_MS + 1_000
        self.act([Lease(self._topic, s.seq, s.version, "c", until_ms) for s in found if not s.held])

    def finish(self) -> None:
        self.act([Done(self._topic, name, "c", v) for name, v in list(self._leased.items())[:3]])

    def delete(self) -> None:
        self.act([Delete(self._topic, name, "g") for name in self.some(3)])

    def move(self) -> None:
        self.act([Move(self._topic, name, "g", NOW_MS + 7) for name in self.some(3)])

    def update(self) -> None:
        self.act([Update(self._topic, name, "g", self.payload()) for name in self.some(2)])

    def transact(self) -> None:
        self.act(
            [self.new(), *[Delete(self._topic, name, "g") for name in self.some(2)]], atomic=True
        )

    def look(self) -> None:
        self.check(self.store)

    def close(self) -> None:
        self.store.close()

    # What comes of them

    def new(self) -> Put:
        self._count += 1
        return Put(self._topic, f"m{self._count}", "g", NOW_MS + 5, self.payload())

    def payload(self) -> bytes:
        return bytes([self._lot.randrange(256)]) * self._lot.choice((10, 500, 9_000))

    def some(self, count: int) -> list[str]:
        free = [*self._payloads.keys() - self._leased.keys() - self._doubtful]
        return self._lot.sample(sorted(free), min(count, len(free)))

    def act(self, changes: "list[Change]", *, atomic: bool = False) -> None:
        if not changes:
            return
        try:
            (outcomes,) = self.store.apply(NOW_MS, [Work(changes, atomic)])
        except DiskFullError:
            raise
        except StorageFailedError:
            self._doubtful |= self._payloads.keys()
            self._doubtful |= {change.id for change in changes if isinstance(change, Put)}
            return
        told = outcomes if isinstance(outcomes, list) else [outcomes] * len(changes)
        for change, outcome in zip(changes, told, strict=True):
            if isinstance(outcome, DiskFullError):
                assert atomic or isinstance(change, GROWING) or self.way != "once", change
                self.refusals += 1
            elif isinstance(outcome, IsterError):
                assert self._doubtful, outcome
            else:
                self.learn(change, outcome)

    def learn(self, change: Change, outcome: Changed | Row) -> None:
        if isinstance(change, GROWING):
            self._payloads[change.id] = change.payload
        elif isinstance(change, Delete | Done):
            self._payloads.pop(change.id)
            self._leased.pop(change.id, None)
        elif isinstance(change, Lease):
            self._leased[outcome.id] = outcome.version

    def check(self, store: SqliteStore) -> None:
        rows = store.page(self._topic, START[0], END, START, 10_000)
        found = {row.id: row.payload for row in rows if row.id not in self._doubtful}
        known = {name: p for name, p in self._payloads.items() if name not in self._doubtful}
        assert found == known
        assert store.count(self._topic, START[0], END) == len(rows)


def live(folder: Path, seed: int, way: str, number: int, library: ctypes.CDLL) -> tuple[int, int]:
    """Return how many writes there were, and how many messages were refused."""
    shutil.rmtree(folder, ignore_errors=True)
    file = folder / FILE_NAME
    library.fail_writes(number, WAYS.index(way))
    life = Life(file, seed, way)
    life.live()
    writes = library.count_writes()
    library.fail_writes(-1, 0)
    life.begin()
    refusals = life.refusals
    life.put()
    assert life.refusals == refusals, "there is room, and a message is refused"
    life.check(life.store)
    life.store.close()
    again = SqliteStore(file, busy_timeout_s=0.0)
    life.check(again)
    again.close()
    with sqlite3.connect(file) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    return writes, refusals


def main() -> None:
    folder, seed, stride = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    library = ctypes.CDLL(None)
    library.count_writes.restype = ctypes.c_long
    library.fail_writes.argtypes = [ctypes.c_long, ctypes.c_int]
    writes, refused = live(folder, seed, "once", -1, library)
    assert refused == 0
    lives = 0
    for first, way in enumerate(WAYS):
        for number in sorted({*range(BEGINNING), *range(first, writes, stride)}):
            try:
                refused += live(folder, seed, way, number, library)[1]
                lives += 1
            except BaseException:
                sys.stderr.write(f"seed {seed}, {way}, write {number} of {writes}\n")
                raise
    sys.stdout.write(f"{lives} {refused}\n")


if __name__ == "__main__":
    main()
