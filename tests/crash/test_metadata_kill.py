"""What a write of metadata returned for is there, whenever the process is killed."""

import random
import subprocess
import sys
from pathlib import Path

from ister.metadata import SqliteMetadata, facts_below

ROOT = Path(__file__).resolve().parent.parent.parent
LIVES = 5


async def test_what_a_write_returned_for_survives_a_kill(tmp_path: Path) -> None:
    chance = random.Random(4)
    for life in range(LIVES):
        told = live(tmp_path, writes=chance.randrange(1, 30))

        metadata = SqliteMetadata(tmp_path)
        values = [fact.value async for fact in facts_below(metadata, "facts/", page=100)]
        last = await metadata.get("last")
        await metadata.close()
        # One write may have been done that nobody was told of; each is whole or absent.
        assert len(values) - 1 in (told, told + 1), life
        assert values == [b"%d" % number * 100 for number in range(len(values))]
        assert last is not None
        assert int(last.value) == len(values) - 1


def live(folder: Path, *, writes: int) -> int:
    """Run the writer, kill it after so many writes, and return the last it told of."""
    command = [sys.executable, "-m", "tests.crash.factwriter", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(writes)]
        process.kill()
        # What it told before it was killed is still in the pipe, the last line perhaps cut short.
        lines += [line for line in process.stdout if line.endswith(b"\n")]
        process.wait()
    return int(lines[-1])
