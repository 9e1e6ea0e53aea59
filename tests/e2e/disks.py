"""Real disks that misbehave, and files that were damaged, for end-to-end tests.

Everything here asks first whether this machine allows it, and skips the test with a reason if not.
"""

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

COMMAND_TIMEOUT_S = 30.0
# See docs/journal-format.md: crc, length, magic, kind, flags, topic, number, synced, count, mark.
ENTRY = struct.Struct("<IIHBBIQQII")
MAGIC = 0x4A53
BATCH = 2


# Disks.


@contextmanager
def small_disk(folder: Path, kind: str, size_mib: int) -> Iterator[Path]:
    """Mount a file system of its own, `tmpfs` or `ext4` in a file, and yield where it is."""
    place = folder / "disk"
    place.mkdir()
    if kind == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "ister-test", str(place)]
    else:
        image = folder / "disk.img"
        with image.open("wb") as file:
            file.truncate(size_mib * 1024 * 1024)
        _run_or_skip(["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", str(image)])
        command = ["mount", "-o", "loop", str(image), str(place)]
    _run_or_skip(command)
    try:
        yield place
    finally:
        # The process beside a broker that was killed may have a file open for a moment more.
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=COMMAND_TIMEOUT_S)


def _run_or_skip(command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    done = subprocess.run(command, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False)
    if done.returncode:
        pytest.skip(f"{command[0]} is not allowed here: {done.stderr.decode().strip()[:200]}")


def ballast_of(place: Path) -> Path:
    """Return the file that `fill_disk` fills a disk with."""
    return place / "ballast"


def fill_disk(place: Path) -> Path:
    """Use up all the room there is, and return the file that does. Called again, it takes more."""
    ballast = ballast_of(place)
    with ballast.open("ab", buffering=0) as file:
        for size_bytes in (1024 * 1024, 4096, 1):
            with suppress(OSError):
                while True:
                    file.write(b"\1" * size_bytes)
        with suppress(OSError):
            os.fsync(file.fileno())
    return ballast


# Calls to the system that lie.

LIES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static int faulty(const char *name) {
    const char *switch_file = getenv(name);
    if (!switch_file || access(switch_file, F_OK)) return 0;
    errno = EIO;
    return 1;
}

#define SYNC(name)                                                        \
    int name(int fd) {                                                    \
        int (*real)(int) = dlsym(RTLD_NEXT, #name);                       \
        return faulty("FAULTY_SYNC") ? -1 : real(fd);                     \
    }
SYNC(fdatasync)
SYNC(fsync)

/* Positional reads, which journal files are read with. */
#define READ(name)                                                        \
    ssize_t name(int fd, void *to, size_t size, off_t position) {         \
        ssize_t (*real)(int, void *, size_t, off_t) = dlsym(RTLD_NEXT, #name); \
        return faulty("FAULTY_READ") ? -1 : real(fd, to, size, position); \
    }
READ(pread)
READ(pread64)

/* Half of it is written before the error comes. */
#define WRITE(name)                                                       \
    ssize_t name(int fd, const struct iovec *from, int count, off_t position, int flags) { \
        ssize_t (*real)(int, const struct iovec *, int, off_t, int) = dlsym(RTLD_NEXT, #name); \
        if (!faulty("FAULTY_WRITE")) return real(fd, from, count, position, flags); \
        real(fd, from, (count + 1) / 2, position, flags);                 \
        errno = EIO;                                                      \
        return -1;                                                        \
    }
WRITE(pwritev2)
WRITE(pwritev64v2)
"""


def faulty_calls(folder: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> Path:
    """Have every `sync`, `read` or `write` of brokers started from now on fail with EIO.

    But only while the file exists that is returned.
    """
    preload(folder, monkeypatch, LIES)
    switch = folder / f"{call}-fails"
    monkeypatch.setenv(f"FAULTY_{call.upper()}", str(switch))
    return switch


def preload(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Have processes started from now on use functions in C instead of the system's."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("calls to the system can be replaced on Linux only, with a C compiler")
    source, library = folder / "lies.c", folder / "lies.so"
    source.write_text(code)
    _run_or_skip([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"])
    monkeypatch.setenv("LD_PRELOAD", str(library))


# Files.


class Entry(NamedTuple):
    """Where an entry of a journal file is."""

    position: int
    size_bytes: int
    kind: int
    synced: int


def segments(data: Path) -> list[Path]:
    """Return the journal files of a data folder, the open one last."""
    return sorted((data / "segments").iterdir())


def entries(path: Path) -> list[Entry]:
    """Return the entries of a journal file, up to the zeros behind the last one."""
    data = path.read_bytes()
    found, position = [], 0
    while position + ENTRY.size <= len(data):
        _, length, magic, kind, _, _, _, synced, _, _ = ENTRY.unpack_from(data, position)
        if magic != MAGIC:
            break
        size_bytes = ENTRY.size + (length + 7) // 8 * 8
        found.append(Entry(position, size_bytes, kind, synced))
        position += size_bytes
    return found


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Write bytes in the middle of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip_bit(path: Path, position: int) -> None:
    """Turn one bit round."""
    byte = path.read_bytes()[position]
    overwrite(path, position, bytes([byte ^ 0x10]))


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder with what is in it, to see whether anything changes.

    The lock file is left out: who looks at a folder has to take it.
    """
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }
