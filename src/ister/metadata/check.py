"""Verifying the facts in a folder that nobody has open: every row is read, nothing is written.

SQLite makes files beside the one it reads, and folds its write-ahead log into it at the end. So
what is looked at is a copy, somewhere else: it also has what only the log holds after a crash.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ister import database
from ister.base.errors import CorruptedError
from ister.metadata.sqlite import FILE_NAME
from ister.metadata.table import FactTable, Faults

# A file of which nothing is right is not worth a list of it.
FAULTS_MAX = 20


class FactsReport(NamedTuple):
    """What was found: how many facts, in how many bytes, and what is not as it was written."""

    facts: int
    size_bytes: int
    faults: Faults


@contextmanager
def copied(folder: Path) -> Iterator[Path | None]:
    """Yield a folder with a copy of the facts in `folder`; `None` when it has none.

    Raises `StorageFailedError`.
    """
    file = folder / FILE_NAME
    if not file.exists():
        yield None
        return
    with database.copied(file) as copy:
        yield copy.parent


def check_facts(folder: Path) -> FactsReport:
    """Verify every fact in a folder, which has to be a copy: see `copied`."""
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    table = FactTable(folder / FILE_NAME, busy_timeout_s=0)
    try:
        facts, faults = table.verify(FAULTS_MAX)
    except CorruptedError as error:
        facts, faults = 0, [(error.position, error.reason)]
    finally:
        table.close()
    return FactsReport(facts, size_bytes, faults)
