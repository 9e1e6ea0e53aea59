"""Tables of Parquet files: whatever step a writer is stopped before, no row is lost or doubled."""

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.base.errors import BadRequestError, TableBusyError
from ister.spark.tables import (
    TableBatch,
    TableColumn,
    TableFolder,
    TableManifest,
    WrittenBatch,
    apply,
    compact,
    dataset,
)
from ister.spark.tables.disk import TableDisk
from ister.spark.tables.manifest import names_of
from ister.spark.tables.rules import FittedColumns

COLUMNS = (
    TableColumn("id", "bigint"),
    TableColumn("total", "bigint"),
    TableColumn("day", "string"),
)
ADDED = TableColumn("note", "string")
TYPES = {"id": pa.int64(), "total": pa.int64(), "note": pa.string()}
DAYS = ("2026-11-15", "2026-11-16")
# Longer than any test takes, and over at once.
LONG_MS, NONE_MS = 3_600_000, 0

Row = tuple[int, int, str]


class Stopped(BaseException):
    """The process ends here. No clean-up of ours may rely on it being caught."""


class QuickDisk(TableDisk):
    """Nothing is synced: that a process is stopped loses no write of before."""

    def sync(self, path: Path) -> None:
        assert path.exists()


class StoppingDisk(QuickDisk):
    """A disk whose process is stopped before its step number `stop`."""

    def __init__(self, stop: int | None = None) -> None:
        self.steps = 0
        self._stop = stop

    def _step(self) -> None:
        if self.steps == self._stop:
            raise Stopped
        self.steps += 1

    def make_folder(self, path: Path) -> None:
        if not path.is_dir():
            self._step()
        super().make_folder(path)

    def move(self, source: Path, target: Path) -> None:
        self._step()
        super().move(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._step()
        super().link(source, target)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)

    def remove_tree(self, path: Path) -> None:
        self._step()
        super().remove_tree(path)


@dataclass(frozen=True)
class Step:
    """A batch, or a merge of all small files when there are no rows at all."""

    rows: tuple[Row, ...] | None
    mode: str = "append"
    has_note: bool = False

    def batch(self, number: int, *, between: Callable[[], None] = lambda: None) -> TableBatch:
        rows = self.rows
        assert rows is not None
        columns = (*COLUMNS, ADDED) if self.has_note else COLUMNS

        def write(fitted: FittedColumns, path: Path) -> int:
            names = [one.name for one in fitted.columns if one.name != "day"]
            for day in sorted({row[2] for row in rows}):
                between()
                values = {
                    "id": [row[0] for row in rows if row[2] == day],
                    "total": [row[1] for row in rows if row[2] == day],
                }
                nulls = [None] * len(values["id"])
                arrays = [pa.array(values.get(name, nulls), TYPES[name]) for name in names]
                folder = path / f"day={day}"
                folder.mkdir(parents=True)
                pq.write_table(pa.table(arrays, names), folder / "part-0.zstd.parquet")
            return len(rows)

        return TableBatch(
            query="q",
            number=number,
            columns=columns,
            write=write,
            partition_by=("day",),
            mode=self.mode,
            keys=("id", "day"),
            topics=("/default/orders",),
        )


@dataclass
class Reference:
    """What the table must hold, computed with a dictionary or a list."""

    rows: list[Row] = field(default_factory=list)

    def follow(self, step: Step) -> None:
        if step.rows is None:
            return
        if step.mode == "complete":
            self.rows = []
        if step.mode == "update":
            replaced = {(row[0], row[2]) for row in step.rows}
            self.rows = [row for row in self.rows if (row[0], row[2]) not in replaced]
        self.rows += step.rows


def perform(folder: TableFolder, step: Step, number: int, grace_ms: int) -> None:
    if step.rows is None:
        compact(folder, grace_ms=grace_ms)
    else:
        apply(folder, step.batch(number), grace_ms=grace_ms)


def exact_rows(path: Path) -> Counter[Row]:
    """The rows by the list of the newest manifest."""
    if TableFolder(path).find() is None:
        return Counter()
    return counted(dataset(path))


def folder_rows(path: Path) -> Counter[Row]:
    """The rows as a reader of the folder sees them."""
    files = [str(one) for one in path.glob("day=*/*.parquet")]
    if not files:
        return Counter()
    return counted(ds.dataset(files, format="parquet", partitioning="hive"))


def counted(found: ds.Dataset) -> Counter[Row]:
    if not found.schema.names:
        return Counter()
    table = found.to_table(columns=["id", "total", "day"], use_threads=False)
    columns = (table.column(name).cast(pa.string()).to_pylist() for name in table.column_names)
    return Counter((int(id_), int(total), day) for id_, total, day in zip(*columns, strict=True))


def run(path: Path, steps: list[Step], stops: list[int], *, grace_ms: int) -> None:
    """Do all steps, each again after a stop; `stops` are counted from the last restart."""
    reference = Reference()
    left = list(stops)
    folder = TableFolder(path, StoppingDisk(left.pop(0) if left else None))
    for number, step in enumerate(steps):
        before = Counter(reference.rows)
        reference.follow(step)
        after = Counter(reference.rows)
        while True:
            try:
                perform(folder, step, number, grace_ms)
                break
            except Stopped:
                assert_before_or_after(path, before, after)
                folder = TableFolder(path, StoppingDisk(left.pop(0) if left else None))
        assert exact_rows(path) == after
        assert folder_rows(path) == after
    assert_tidy(path)


def assert_tidy(path: Path) -> None:
    """Nothing is left of what did not happen."""
    with TableFolder(path, QuickDisk()).lock():
        pass
    manifest = TableFolder(path).find()
    live, retired = names_of(manifest)
    stored = {
        one.relative_to(path / "_ister" / "files").as_posix().removesuffix(".data")
        for one in (path / "_ister" / "files").rglob("*.data")
    }
    assert stored == live | retired
    assert not TableFolder(path).staging.exists()
    assert not list((path / "_ister" / "manifests").glob(".*"))


def rows(start: int, count: int) -> tuple[Row, ...]:
    return tuple((start + n, start, DAYS[n % 2]) for n in range(count))


# Every kind of change, and enough small files for the merge that comes by itself.
LIFE = [
    *(Step(rows(10 * n, 4)) for n in range(8)),
    Step(rows(100, 2), has_note=True),
    Step(None),
    Step((), mode="append"),
    Step(rows(10, 3), mode="update"),
    Step(rows(500, 3), mode="complete"),
    Step(rows(600, 1)),
]


def test_a_writer_that_is_stopped_before_any_step_loses_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    path, copy = tmp_path / "now" / "t", tmp_path / "copy" / "t"
    reference = Reference()
    stops = 0
    for number, step in enumerate(LIFE):
        before = Counter(reference.rows)
        reference.follow(step)
        after = Counter(reference.rows)
        path.parent.mkdir(exist_ok=True)
        shutil.copytree(path.parent, copy.parent)
        disk = StoppingDisk()
        perform(TableFolder(path, disk), step, number, NONE_MS)
        assert exact_rows(path) == folder_rows(path) == after
        # One step after the first is like the other, until a merge follows.
        for stop in range(disk.steps if number not in range(1, 7) else 0):
            stopped = tmp_path / f"{number}-{stop}" / "t"
            shutil.copytree(copy.parent, stopped.parent)
            with pytest.raises(Stopped):
                perform(TableFolder(stopped, StoppingDisk(stop)), step, number, NONE_MS)
            assert_before_or_after(stopped, before, after)
            perform(TableFolder(stopped, QuickDisk()), step, number, NONE_MS)
            assert exact_rows(stopped) == folder_rows(stopped) == after
            assert_tidy(stopped)
            shutil.rmtree(stopped.parent)
            stops += 1
        shutil.rmtree(copy.parent)
    # Else it is not the life that it should be.
    assert stops > 100


def assert_before_or_after(path: Path, before: Counter[Row], after: Counter[Row]) -> None:
    """Whoever looks now sees the table before the step or after it.

    In the folder rows may be missing until the next start; none is there twice or too early.
    """
    exact, seen = exact_rows(path), folder_rows(path)
    assert exact in (before, after)
    assert seen <= before or (exact == after and seen <= after)


RANDOM_ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.sampled_from(DAYS)), max_size=6
).map(tuple)
UNIQUE_ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.sampled_from(DAYS)),
    max_size=6,
    unique_by=lambda row: (row[0], row[2]),
).map(tuple)
STEPS = st.one_of(
    st.builds(Step, RANDOM_ROWS, has_note=st.booleans()),
    st.builds(Step, UNIQUE_ROWS, mode=st.just("update")),
    st.builds(Step, RANDOM_ROWS, mode=st.just("complete")),
)


@settings(max_examples=40)
@given(
    first=st.builds(Step, RANDOM_ROWS),
    others=st.lists(st.one_of(STEPS, st.just(Step(None))), max_size=8),
    stops=st.lists(st.integers(0, 40), max_size=6),
    grace_ms=st.sampled_from([NONE_MS, LONG_MS]),
)
def test_any_life_with_any_stops_ends_with_the_rows_of_a_plain_list(
    first: Step, others: list[Step], stops: list[int], grace_ms: int
) -> None:
    with TemporaryDirectory() as place:
        run(Path(place) / "t", [first, *others], stops, grace_ms=grace_ms)


def write(path: Path, step: Step, number: int, *, grace_ms: int = LONG_MS) -> WrittenBatch:
    return apply(TableFolder(path), step.batch(number), grace_ms=grace_ms)


def manifest_of(path: Path) -> TableManifest:
    found = TableFolder(path).find()
    assert found is not None
    return found


def test_a_batch_that_was_written_is_not_written_again(tmp_path: Path) -> None:
    first = write(tmp_path / "t", Step(rows(0, 4)), 0)
    again = write(tmp_path / "t", Step(rows(0, 4)), 0)

    assert (first.repeated, first.rows, first.files) == (False, 4, 2)
    assert (again.repeated, again.rows, again.manifest) == (True, 0, first.manifest)
    assert manifest_of(tmp_path / "t").rows == 4


def test_a_writer_that_ends_between_two_files_leaves_nothing_behind(tmp_path: Path) -> None:
    calls = []

    def between() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise Stopped

    with pytest.raises(Stopped):
        apply(TableFolder(tmp_path / "t"), Step(rows(0, 4)).batch(0, between=between))
    assert TableFolder(tmp_path / "t").find() is None

    write(tmp_path / "t", Step(rows(0, 4)), 0)
    assert exact_rows(tmp_path / "t") == folder_rows(tmp_path / "t") == Counter(rows(0, 4))
    assert_tidy(tmp_path / "t")


def test_a_manifest_that_was_not_finished_is_removed(tmp_path: Path) -> None:
    write(tmp_path / "t", Step(rows(0, 4)), 0)
    folder = TableFolder(tmp_path / "t")
    folder.begin()
    (folder.manifests / ".new-0123").write_bytes(b"{")

    assert_tidy(tmp_path / "t")
    assert exact_rows(tmp_path / "t") == Counter(rows(0, 4))


def test_rows_that_went_elsewhere_are_noticed_and_nothing_is_committed(tmp_path: Path) -> None:
    batch = Step(rows(0, 4)).batch(0)
    lost = TableBatch(
        query="q",
        number=0,
        columns=batch.columns,
        partition_by=("day",),
        write=lambda fitted, path: batch.write(fitted, path) + 1,
    )

    with pytest.raises(BadRequestError, match="1 of 5 rows"):
        apply(TableFolder(tmp_path / "t"), lost)
    assert TableFolder(tmp_path / "t").find() is None


def test_a_list_of_files_stays_readable_while_files_are_merged_until_its_grace_time_ends(
    tmp_path: Path,
) -> None:
    for number in range(3):
        write(tmp_path / "t", Step(rows(10 * number, 4)), number)
    listed = dataset(tmp_path / "t")
    done = compact(TableFolder(tmp_path / "t"), now_ms=lambda: 0, grace_ms=1_000)
    assert (done.before, done.after) == (6, 2)

    assert counted(listed) == exact_rows(tmp_path / "t") == folder_rows(tmp_path / "t")
    write(tmp_path / "t", Step(rows(90, 1)), 3, grace_ms=0)
    with pytest.raises(FileNotFoundError):
        counted(listed)


def test_files_are_merged_by_themselves_when_there_are_eight_small_ones(tmp_path: Path) -> None:
    one_day = [Step(((n, n, DAYS[0]),)) for n in range(8)]

    merged = [write(tmp_path / "t", step, number).merged for number, step in enumerate(one_day)]

    assert merged == [0] * 7 + [8]
    assert len(manifest_of(tmp_path / "t").files) == 1
    assert manifest_of(tmp_path / "t").files[0].lowest["id"] == 0
    assert manifest_of(tmp_path / "t").files[0].highest["id"] == 7


def test_an_empty_batch_changes_no_table(tmp_path: Path) -> None:
    before = write(tmp_path / "t", Step(rows(0, 4)), 0).manifest

    assert write(tmp_path / "t", Step(()), 1).manifest == before


def test_two_rows_of_one_key_in_an_update_are_refused(tmp_path: Path) -> None:
    twice = Step(((1, 1, DAYS[0]), (1, 2, DAYS[0])), mode="update")

    with pytest.raises(BadRequestError, match="two rows with the same keys"):
        write(tmp_path / "t", twice, 0)


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "old.parquet").write_bytes(b"")

    with pytest.raises(BadRequestError, match="no table wrote"):
        write(tmp_path / "t", Step(rows(0, 1)), 0)


def test_a_table_that_another_one_writes_is_busy(tmp_path: Path) -> None:
    write(tmp_path / "t", Step(rows(0, 1)), 0)

    with (
        TableFolder(tmp_path / "t").lock(),
        pytest.raises(TableBusyError, match="is being written by process"),
        TableFolder(tmp_path / "t").lock(timeout_s=0.0),
    ):
        pass
