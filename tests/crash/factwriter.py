"""Writes facts until it is killed, and tells of each write once it has returned.

Run as a program: `FOLDER` is its argument. Every write puts two facts, which belong together.
"""

import asyncio
import sys
from itertools import count
from pathlib import Path

from ister.metadata import Put, SqliteMetadata


async def write(folder: Path) -> None:
    """Go on where the last life ended."""
    metadata = SqliteMetadata(folder)
    last = await metadata.get("last")
    for number in count(int(last.value) + 1 if last else 0):
        value = b"%d" % number
        revision = last.revision if last and number == int(last.value) + 1 else None
        await metadata.write(
            Put(f"facts/{number:06}", value * 100, 0), Put("last", value, revision)
        )
        print(number, flush=True)


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1])))
