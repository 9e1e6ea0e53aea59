"""A disk that does not sync: no write of metadata is told to be done, and none that was is lost."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.disks import faulty_calls

from ister.metadata import SqliteMetadata, facts_below

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.e2e
async def test_a_write_that_could_not_be_synced_is_not_told_to_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = faulty_calls(tmp_path, monkeypatch, "sync")
    told, error = write_until_it_fails(tmp_path / "data", switch)
    switch.unlink()

    assert "StorageFailedError" in error
    assert "metadata.db: disk I/O error" in error
    metadata = SqliteMetadata(tmp_path / "data")
    values = [fact.value async for fact in facts_below(metadata, "facts/", page=100)]
    await metadata.close()
    assert values[: len(told)] == [line.strip() * 100 for line in told]
    # What failed may be there or not, but nothing after it was tried.
    assert len(values) <= len(told) + 1


def write_until_it_fails(data: Path, switch: Path) -> tuple[list[bytes], str]:
    """Run the writer, have syncs fail after a while; return what it told, and its last words."""
    command = [sys.executable, "-m", "tests.crash.factwriter", str(data)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        told = [process.stdout.readline() for _ in range(3)]
        switch.touch()
        told += process.stdout.readlines()
        return told, process.stderr.read().decode()
