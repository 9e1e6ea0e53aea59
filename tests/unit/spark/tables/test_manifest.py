"""Manifests: what follows a change, and what is read back."""

import pytest

from ister.base.errors import CorruptedError, VersionError
from ister.spark.tables.manifest import (
    MARKS_MAX,
    DataFile,
    QueryMark,
    TableChange,
    TableColumn,
    TableManifest,
    decode_manifest,
    encode_manifest,
    is_written,
    latest_batch,
    manifest_name,
    next_manifest,
)

COLUMNS = (TableColumn("id", "bigint"),)
GRACE_MS = 1_000


def change(
    *added: str, removed: tuple[str, ...] = (), query: str | None = "q", batch: int = 0
) -> TableChange:
    return TableChange(
        added=tuple(DataFile(name, rows=2, size_bytes=10, columns=1) for name in added),
        removed=removed,
        columns=COLUMNS,
        partition_by=(),
        topics=("/default/a",),
        query=query,
        batch=batch,
    )


def after(*changes: TableChange, now_ms: int = 0) -> TableManifest:
    made: TableManifest | None = None
    for one in changes:
        made = next_manifest(made, one, now_ms=now_ms, grace_ms=GRACE_MS)
    assert made is not None
    return made


def names(manifest: TableManifest) -> list[str]:
    return [one.name for one in manifest.files]


def test_a_change_adds_files_and_retires_others() -> None:
    made = after(change("a", "b"), change("c", removed=("a",), batch=1), now_ms=7)

    assert made.number == 1
    assert names(made) == ["b", "c"]
    assert [(one.name, one.since_ms) for one in made.retired] == [("a", 7)]
    assert (made.rows, made.size_bytes) == (4, 20)


def test_a_retired_file_is_let_go_when_its_grace_time_ends() -> None:
    before = after(change("a"), change("b", removed=("a",), batch=1))

    def retired_at(now_ms: int) -> list[str]:
        made = next_manifest(before, change(batch=2), now_ms=now_ms, grace_ms=GRACE_MS)
        return [one.name for one in made.retired]

    assert retired_at(GRACE_MS - 1) == ["a"]
    assert retired_at(GRACE_MS) == []


def test_a_batch_is_known_with_all_before_it_and_for_its_query_only() -> None:
    made = after(change("a", batch=4))

    assert is_written(made, "q", 3)
    assert is_written(made, "q", 4)
    assert not is_written(made, "q", 5)
    assert not is_written(made, "other", 0)
    assert not is_written(None, "q", 0)


def test_a_merge_leaves_the_marks_alone() -> None:
    made = after(change("a", batch=4), change("b", removed=("a",), query=None))

    assert made.marks == {"q": QueryMark(4, 0)}
    assert latest_batch(made) == ("q", QueryMark(4, 0))


def test_the_query_that_was_silent_longest_is_forgotten_first() -> None:
    made = after(
        change(query="first"),
        *(change(query=f"q{n}") for n in range(MARKS_MAX - 1)),
        change(query="first", batch=1),
        change(query="last"),
    )

    assert len(made.marks) == MARKS_MAX
    assert "q0" not in made.marks
    assert {"first", "q1", "last"} <= set(made.marks)


def test_a_manifest_is_read_back_as_it_was_written() -> None:
    made = after(change("day=2026-11-16/a"), change("b", removed=("day=2026-11-16/a",)))

    assert decode_manifest(encode_manifest(made), "m") == made
    assert made.topics == ("/default/a",)


def test_names_sort_as_their_numbers() -> None:
    assert manifest_name(42) == "00000000000000000042.json"
    assert manifest_name(9) < manifest_name(10)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"version": 1}', b"\xff"])
def test_what_is_no_manifest_is_told_with_its_place(data: bytes) -> None:
    with pytest.raises(CorruptedError) as caught:
        decode_manifest(data, "lake/m.json")

    assert caught.value.file == "lake/m.json"


def test_a_later_format_is_refused() -> None:
    data = encode_manifest(after(change("a"))).replace(b'"version": 1', b'"version": 2')

    with pytest.raises(VersionError):
        decode_manifest(data, "m")
