"""A data folder with timelines and schemas is damaged, and salvaged into another one."""

import asyncio
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import msgspec
import pytest
from tests.unit.log.harness import TIME_MS

from ister.base import StreamSettings, TimelineSettings
from ister.base.errors import BadRequestError, ConfigError
from ister.broker import StoppedLog
from ister.broker.state.changes import TopicCreated
from ister.log import FileBackend, LogOptions, check_folder
from ister.metadata import FILE_NAME as FACTS
from ister.metadata import SqliteMetadata, check_facts, copied
from ister.objects import LocalDisk
from ister.registry import Registry
from ister.server import check_restored, salvage_folder
from ister.timeline import FILE_NAME as TIMELINES
from ister.timeline import Delete, Lease, Put, SqliteStore, Work, check_timelines
from ister.timeline.sqlite import put_log

OPTIONS = LogOptions(now_ms=lambda: TIME_MS)
ORDERS = "/default/orders"
MESSAGES = 300
SUBJECTS = 40


def make_folder(folder: Path) -> None:
    stopped = StoppedLog(FileBackend(LocalDisk(folder)), OPTIONS)
    stopped.record([TopicCreated(1, ORDERS, StreamSettings())])
    stopped.checkpoint()
    stopped.close()
    make_timelines(folder / TIMELINES)
    asyncio.run(make_schemas(folder))


def make_timelines(file: Path) -> None:
    """Make messages: some leased, some gone, some only in the log that earlier versions kept."""
    store = SqliteStore(file)
    settings = msgspec.msgpack.encode(TimelineSettings())
    topics = [store.create_topic(f"/default/t{n}", "timeline", settings).number for n in range(3)]
    puts = [
        Put(topics[n % 3], f"m{n}", "g", TIME_MS + n, b"%d " % n * (1 + n % 60))
        for n in range(MESSAGES)
    ]
    [made] = store.apply(TIME_MS, [Work(list(puts))])
    assert isinstance(made, list)
    leases = [
        Lease(put.topic, one.seq, one.version, "c", TIME_MS + 10_000)  # type: ignore[union-attr]
        for put, one in list(zip(puts, made, strict=True))[:20]
    ]
    store.apply(TIME_MS, [Work(list(leases))])
    store.apply(TIME_MS, [Work([Delete(p.topic, p.id, "g") for p in puts[20:30]])])
    late = [Put(topics[0], f"late{number}", "g", TIME_MS, b"late") for number in range(5)]
    leave_puts(file, late, store._version + 1)
    # As a broker that is killed leaves it: not closed.
    connection = store._connection
    assert connection is not None
    connection.close()


def leave_puts(file: Path, puts: list[Put], version: int) -> None:
    """Write the log of puts as an earlier version has left it in a crash."""
    magic, mark = put_log.MAGIC, b"drawn by"
    log = put_log.HEADER.pack(magic, mark, crc32(magic + mark))
    for number, put in enumerate(puts, version):
        body = msgspec.msgpack.encode(put)
        checksum = crc32(body, crc32(put_log.CHECKED.pack(number, len(body))))
        record = put_log.HEAD.pack(mark, number, len(body), checksum) + body
        log += record + bytes(-len(record) % 8)
    file.with_name(file.name + put_log.SUFFIX).write_bytes(log.ljust(put_log.LOG_BYTES, b"\0"))


async def make_schemas(folder: Path) -> None:
    metadata = SqliteMetadata(folder)
    registry = await Registry.open(metadata, now_ms=lambda: TIME_MS)
    for number in range(SUBJECTS):
        await registry.register(f"s{number}", "string", b"")
    await registry.bind(ORDERS, "s1")
    await metadata.close()


def messages(file: Path) -> dict[tuple[str, str], tuple[object, ...]]:
    """Return all messages of a file that is whole, with what a consumer gets of them."""
    store = SqliteStore(file)
    found = {}
    for topic in store.topics():
        for n in [*(f"m{n}" for n in range(MESSAGES)), *(f"late{n}" for n in range(5))]:
            row = store.get(topic.number, n)
            if row is not None:
                found[topic.name, row.id] = tuple(row)
    store.close()
    return found


async def subjects(folder: Path) -> list[str]:
    metadata = SqliteMetadata(folder)
    registry = await Registry.open(metadata, now_ms=lambda: TIME_MS)
    names = [row.subject for row in registry.subjects()]
    await metadata.close()
    return names


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def copy_of(contents: dict[str, bytes], folder: Path) -> None:
    for name, data in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder, which nobody changes."""
    made = tmp_path_factory.mktemp("salvage") / "data"
    made.mkdir()
    make_folder(made)
    return made


@pytest.fixture(scope="module")
def before(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], tuple[object, ...]]:
    """Return the messages of its timelines."""
    copy = tmp_path_factory.mktemp("before")
    copy_of(files(folder), copy)
    return messages(copy / TIMELINES)


def check_whole(folder: Path) -> None:
    """Fail unless a check finds nothing."""
    assert check_folder(FileBackend(LocalDisk(folder))).problems == []
    if (folder / TIMELINES).exists():
        assert check_timelines(folder / TIMELINES).faults == []
    with copied(folder) as copy:
        if copy is not None:
            assert check_facts(copy).faults == []


def test_an_intact_folder_is_salvaged_whole(
    folder: Path, before: dict[tuple[str, str], tuple[object, ...]], tmp_path: Path
) -> None:
    found = files(folder)
    salvaged = salvage_folder(folder, tmp_path / "new", OPTIONS)

    assert salvaged.is_whole
    assert files(folder) == found
    check_whole(tmp_path / "new")
    assert messages(tmp_path / "new" / TIMELINES) == before
    assert len(asyncio.run(subjects(tmp_path / "new"))) == SUBJECTS
    assert salvaged.timelines.messages == len(before) == MESSAGES - 10 + 5


def hurt(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    at = chance.randrange(len(data))
    how = chance.choice(["flip", "zero", "truncate"])
    if how == "flip":
        changed[at] ^= 1 << chance.randrange(8)
    elif how == "zero":
        end = min(len(data), at + chance.choice([8, 600, 9_000]))
        changed[at:end] = bytes(end - at)
    else:
        del changed[at:]
    return bytes(changed)


def folded(folder: Path, name: str) -> dict[str, bytes]:
    """Return the files of a folder with nothing left in the write-ahead log of one of them."""
    connection = sqlite3.connect(folder / name)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return files(folder)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_salvaged_of_timelines_is_true_and_the_rest_is_counted(
    seed: int,
    folder: Path,
    before: dict[tuple[str, str], tuple[object, ...]],
    tmp_path: Path,
) -> None:
    chance = random.Random(seed)
    source = tmp_path / "data"
    copy_of(files(folder), source)
    contents = folded(source, TIMELINES)
    name = chance.choice([TIMELINES] * 4 + [f"{TIMELINES}-puts"])
    contents[name] = hurt(contents[name], chance)
    copy_of(contents, source)
    salvaged = salvage_folder(source, tmp_path / "new", OPTIONS)

    assert files(source).items() >= contents.items(), "the source has changed"
    check_whole(tmp_path / "new")
    after = messages(tmp_path / "new" / TIMELINES)
    for key, row in after.items():
        # A lease may be over.
        known = before[key]
        assert (row[:3], row[4:6], row[10:]) == (known[:3], known[4:6], known[10:])
    report = salvaged.timelines
    missing = before.keys() - after.keys()
    if report.is_whole:
        counted = sum(report.lost.values())
        gone = [key for key in missing if key[0] in report.lost_topics]
        assert counted >= len(missing) - len(gone), f"{missing} are missing silently: {report}"
    assert not salvaged.is_whole or not missing


@pytest.mark.parametrize("seed", range(40))
def test_schemas_that_are_salvaged_open_and_the_others_are_named(
    seed: int, folder: Path, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    source = tmp_path / "data"
    copy_of(files(folder), source)
    contents = folded(source, FACTS)
    contents[FACTS] = hurt(contents[FACTS], chance)
    copy_of(contents, source)
    salvaged = salvage_folder(source, tmp_path / "new", OPTIONS)

    check_whole(tmp_path / "new")
    names = set(asyncio.run(subjects(tmp_path / "new")))
    missing = {f"s{n}" for n in range(SUBJECTS)} - names
    if salvaged.knows_facts:
        lost = " ".join(salvaged.lost_facts)
        assert all(f"schemas/subjects/{name}" in lost for name in missing), salvaged.lost_facts
    assert not salvaged.is_whole or not missing


def test_a_salvage_that_was_cut_short_begins_again(
    folder: Path, tmp_path: Path, killed: Callable[[int, Path], bool]
) -> None:
    steps = 0
    while killed(steps, tmp_path / "new"):
        steps += 1
        with pytest.raises(ConfigError, match="run `ister storage salvage` again"):
            check_restored(tmp_path / "new")
    check_restored(tmp_path / "new")
    check_whole(tmp_path / "new")

    assert steps > 3


@pytest.fixture
def killed(folder: Path) -> Callable[[int, Path], bool]:
    """Return what salvages up to a call of `on_progress`, and tells whether it came to that."""

    class Killed(BaseException):
        pass

    def run(number: int, target: Path) -> bool:
        left = number

        def on_progress(_: str, __: int) -> None:
            nonlocal left
            left -= 1
            if left < 0 and (target / "salvaging").exists():
                raise Killed

        try:
            salvage_folder(folder, target, OPTIONS, on_progress=on_progress)
        except Killed:
            return True
        return False

    return run


def test_a_folder_that_is_not_empty_is_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "mine").write_bytes(b"mine")

    with pytest.raises(BadRequestError, match="not empty"):
        salvage_folder(folder, tmp_path / "new", OPTIONS)
    assert files(tmp_path / "new") == {"mine": b"mine"}


@pytest.mark.parametrize("where", ["new", "."])
def test_a_folder_is_not_salvaged_into_itself(folder: Path, where: str) -> None:
    with pytest.raises(BadRequestError, match="in one another"):
        salvage_folder(folder, folder / where, OPTIONS)
