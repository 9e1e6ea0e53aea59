"""A process that is killed in the middle: what it was told to be done is there, and whole."""

import random
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from tests.e2e.disks import faulty_calls

from ister.timeline import (
    FILE_NAME,
    Changed,
    Delete,
    Done,
    Lease,
    Move,
    Outcomes,
    Put,
    Row,
    SqliteStore,
    Update,
    Work,
)

ROOT = Path(__file__).resolve().parent.parent.parent.parent
KILLS = 12
NOW_MS = 1_000
PAIR = ("left", "right")
# Puts of a turn that are each a commit of their own.
LONE_COUNT = 5
END_MS = 2**62


@pytest.mark.e2e
def test_what_was_told_to_be_done_is_there_after_a_kill_and_atomic_work_is_whole(
    tmp_path: Path,
) -> None:
    lot = random.Random(6)
    file = tmp_path / FILE_NAME
    first = 0
    untold: set[int] = set()
    for _ in range(KILLS):
        told = write_until_killed(file, first, turns=lot.randrange(1, 60))
        last = check(file, told, untold)
        untold |= {last} - {told}
        first = last + 1


@pytest.mark.e2e
def test_what_could_not_be_synced_is_not_told_to_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "data" / FILE_NAME
    switch = faulty_calls(tmp_path, monkeypatch, "sync")
    with writer(file, 0) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = [process.stdout.readline() for _ in range(5)]
        switch.touch()
        lines += process.stdout.readlines()
        words = process.stderr.read().decode()
    switch.unlink()

    assert "StorageFailedError" in words
    check(file, max(map(int, lines)), set())


def write_until_killed(file: Path, first: int, turns: int) -> int:
    """Have a process write from turn `first` on, kill it; return the last turn that it told."""
    with writer(file, first) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(turns)]
        process.kill()
        lines += process.stdout.readlines()
    # The last may be cut.
    return max(int(line) for line in lines if line.endswith(b"\n"))


def writer(file: Path, first: int) -> "subprocess.Popen[bytes]":
    """Start a process that writes until it fails, or is killed."""
    code = "from tests.e2e.timeline.test_sqlite_kill import write; write()"
    command = [sys.executable, "-c", code, str(file), str(first)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def write() -> None:
    """Change messages, turn by turn, and tell each turn that is durable."""
    store = SqliteStore(Path(sys.argv[1]))
    topics = store.topics() or [store.create_topic("/default/kills", "timeline", b"")]
    for turn in count(int(sys.argv[2])):
        write_turn(store, topics[0].number, turn)
        sys.stdout.write(f"{turn}\n")
        sys.stdout.flush()


def write_turn(store: SqliteStore, topic: int, turn: int) -> None:
    """Put messages, deal with one of them, change the pair in one go; then put some one by one."""
    text = str(turn).encode()
    puts = [Put(topic, f"{turn}-{number}", "shop", NOW_MS, text) for number in range(20)]
    moves = [Update(topic, name, "shop", text) for name in PAIR] + [
        Move(topic, name, "shop", NOW_MS + turn) for name in PAIR
    ]
    renewed = [Delete(topic, name, "shop") for name in PAIR] + [
        Put(topic, name, "shop", NOW_MS + turn, text) for name in PAIR
    ]
    pair = renewed[2:] if turn == 0 else renewed if turn % 2 else moves
    found, whole = store.apply(NOW_MS, [Work([*puts]), Work([*pair], atomic=True)])
    made = [outcome for outcome in listed(found) if isinstance(outcome, Changed)]
    assert len(made) == len(puts)
    assert len(listed(whole)) == len(pair)
    lease = Lease(topic, made[0].seq, made[0].version, "c-1", NOW_MS + 10)
    (found,) = store.apply(NOW_MS, [Work([lease])])
    (row,) = listed(found)
    assert isinstance(row, Row)
    (found,) = store.apply(NOW_MS, [Work([Done(topic, row.id, "c-1", row.version)])])
    assert isinstance(listed(found)[0], Changed)
    for number in range(LONE_COUNT):
        put = Put(topic, f"{turn}-lone-{number}", "shop", NOW_MS, text)
        (found,) = store.apply(NOW_MS, [Work([put])])
        assert isinstance(listed(found)[0], Changed)


def check(file: Path, told: int, untold: set[int]) -> int:
    """Look at everything; return the last turn that is there, whether it was told or not."""
    store = SqliteStore(file)
    (topic,) = store.topics()
    rows: list[Row] = []
    after = (-1, 0)
    while page := store.page(topic.number, 0, END_MS, after, 1_000):
        rows += page
        after = (page[-1].position_ms, page[-1].seq)
    store.close()
    ids = {row.id for row in rows}
    assert len(ids) == len(rows)
    for turn in range(told + 1):
        missing = [number for number in range(20) if f"{turn}-{number}" not in ids]
        # Of a turn that was cut short, the one to be dealt with may be there.
        assert missing == [0] or (turn in untold and not missing)
        lone = {f"{turn}-lone-{number}" for number in range(LONE_COUNT)}
        assert turn in untold or lone <= ids
    pair = [row for row in rows if row.id in PAIR]
    assert sorted(row.id for row in pair) == list(PAIR)
    assert pair[0].payload == pair[1].payload
    assert pair[0].due_ms == pair[1].due_ms == NOW_MS + int(pair[0].payload)
    last = int(pair[0].payload)
    # One turn at most had begun; what it put is there with the pair.
    assert told <= last <= told + 1
    assert {f"{last}-{number}" for number in range(1, 20)} <= ids
    assert not any(name.startswith(f"{last + 1}-") for name in ids)
    return last


def listed(outcomes: Outcomes) -> list[object]:
    """Return the outcomes of work that was made."""
    assert isinstance(outcomes, list), outcomes
    return list(outcomes)
