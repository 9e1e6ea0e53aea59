"""What a table decides about columns, keys, small files and strangers in its folder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.base.errors import BadRequestError, TableSchemaError
from ister.base.limits import KIB, MIB
from ister.spark.tables.manifest import DataFile, RetiredFile, TableColumn, TableManifest
from ister.spark.tables.rules import (
    FILES_MAX,
    MERGE_FILES_MIN,
    TARGET_BYTES,
    check_file_count,
    check_keys,
    fit,
    plan_all_merges,
    plan_merges,
    plan_repairs,
    tier,
)

ID, DAY = TableColumn("id", "bigint"), TableColumn("day", "date")
NOTE = TableColumn("note", "string")
FIRST = f"{0:020}-00000000-0"
SECOND = f"{1:020}-00000000-0"


def manifest(
    *columns: TableColumn,
    partition_by: tuple[str, ...] = (),
    files: tuple[DataFile, ...] = (),
    retired: tuple[RetiredFile, ...] = (),
) -> TableManifest:
    return TableManifest(
        number=3,
        made_ms=0,
        columns=columns,
        partition_by=partition_by,
        topics=(),
        marks={},
        files=files,
        retired=retired,
    )


def file(size_bytes: int, *, name: str = "f", partition: str = "") -> DataFile:
    return DataFile(f"{partition}/{name}".lstrip("/"), rows=1, size_bytes=size_bytes, columns=1)


def test_the_first_batch_gives_a_table_its_columns() -> None:
    fitted = fit("t", None, columns=[ID, DAY], partition_by=["day"])

    assert fitted.columns == (ID, DAY)
    assert fitted.taken == ("id", "day")


def test_a_new_column_goes_to_the_end_and_a_missing_one_stays_with_nothing_to_take() -> None:
    fitted = fit("t", manifest(ID, DAY), columns=[NOTE, ID], partition_by=[])

    assert fitted.columns == (ID, DAY, NOTE)
    assert fitted.taken == ("id", None, "note")


def test_names_are_the_same_whatever_their_case() -> None:
    fitted = fit("t", manifest(ID, DAY), columns=[TableColumn("ID", "bigint")], partition_by=[])

    assert fitted.columns == (ID, DAY)
    assert fitted.taken == ("ID", None)


def test_a_narrower_number_fits_and_a_wider_one_does_not() -> None:
    assert fit("t", manifest(ID), columns=[TableColumn("id", "int")], partition_by=[]).columns == (
        ID,
    )
    with pytest.raises(TableSchemaError):
        fit("t", manifest(TableColumn("id", "int")), columns=[ID], partition_by=[])


def test_all_changed_types_are_told_at_once_with_the_way_out() -> None:
    changed = [TableColumn("id", "string"), TableColumn("day", "timestamp")]

    with pytest.raises(TableSchemaError) as caught:
        fit("lake/t", manifest(ID, DAY), columns=changed, partition_by=[])

    assert caught.value.clashes == [
        "column 'id' is bigint, not string",
        "column 'day' is date, not timestamp",
    ]
    assert "cast the columns" in str(caught.value)


def test_a_table_keeps_its_partition_columns() -> None:
    with pytest.raises(TableSchemaError, match=r"partitioned by \['day'\], not \[\]"):
        fit("t", manifest(ID, DAY, partition_by=("day",)), columns=[ID, DAY], partition_by=[])


def test_a_partition_column_must_be_in_the_batch() -> None:
    with pytest.raises(BadRequestError, match="no column of the batch"):
        fit("t", None, columns=[ID], partition_by=["day"])


def test_a_file_needs_a_column_that_is_no_partition() -> None:
    with pytest.raises(BadRequestError, match="a column of its own"):
        fit("t", None, columns=[DAY], partition_by=["day"])


@pytest.mark.parametrize(
    ("keys", "partition_by", "match"),
    [
        ([], [], "needs `keys`"),
        (["nothing"], [], "no column"),
        (["w"], [], "window.start"),
        (["id"], ["day"], "none of its keys"),
    ],
)
def test_updates_are_refused_where_a_row_could_not_be_found_again(
    keys: list[str], partition_by: list[str], match: str
) -> None:
    window = TableColumn("w", "struct<start:timestamp,end:timestamp>")

    with pytest.raises(BadRequestError, match=match):
        check_keys("t", columns=[ID, DAY, window], partition_by=partition_by, keys=keys)


def test_updates_are_accepted_when_the_partition_is_part_of_the_key() -> None:
    check_keys("t", columns=[ID, DAY], partition_by=["day"], keys=["id", "day"])


def test_a_tier_is_up_to_eight_times_the_one_before() -> None:
    assert [tier(size) for size in (0, 64 * KIB - 1)] == [0, 0]
    assert [tier(size) for size in (64 * KIB, 512 * KIB - 1)] == [1, 1]
    assert [tier(size) for size in (512 * KIB, 4 * MIB - 1)] == [2, 2]
    assert tier(4 * MIB) == 3


def test_files_are_merged_when_there_are_enough_of_one_size_in_one_partition() -> None:
    enough = [file(1_000, name=f"{n}", partition="day=1") for n in range(MERGE_FILES_MIN)]
    elsewhere = [file(1_000, partition="day=2")]
    larger = [file(MIB, name="large", partition="day=1")]

    assert plan_merges([*enough[1:], *elsewhere, *larger]) == []
    assert plan_merges([*enough, *elsewhere, *larger]) == [enough]


def test_smaller_files_come_along_with_a_merge() -> None:
    small = file(10, name="small")
    files = [small, *(file(MIB, name=f"{n}") for n in range(MERGE_FILES_MIN))]

    assert plan_merges(files) == [files]


def test_large_files_are_never_merged_again() -> None:
    files = [file(TARGET_BYTES // 2, name=f"{n}") for n in range(20)]

    assert plan_merges(files) == []
    assert plan_all_merges(files) == []


def test_what_is_merged_after_one_batch_is_bounded() -> None:
    files = [
        file(30 * MIB, name=f"{n}", partition=f"day={day}") for day in range(5) for n in range(8)
    ]

    merged = plan_merges(files, budget_bytes=256 * MIB)

    assert 0 < sum(one.size_bytes for group in merged for one in group) <= 256 * MIB
    assert len(plan_all_merges(files)) == 10


def test_asked_to_merge_all_two_files_are_enough() -> None:
    two = [file(1, name="a"), file(40 * MIB, name="b")]

    assert plan_all_merges(two) == [two]
    assert plan_all_merges(two[:1]) == []


@given(
    st.lists(st.tuples(st.sampled_from(["day=1", "day=2"]), st.integers(1, 200 * MIB)), max_size=60)
)
def test_a_plan_has_each_file_once_and_no_group_beyond_the_target_or_over_partitions(
    sizes: list[tuple[str, int]],
) -> None:
    files = [
        file(size, name=f"{slot}", partition=partition)
        for slot, (partition, size) in enumerate(sizes)
    ]

    for plan in (plan_merges(files), plan_all_merges(files)):
        names = [one.name for group in plan for one in group]
        assert len(names) == len(set(names))
        for group in plan:
            assert len(group) > 1
            assert len({one.partition for one in group}) == 1
            assert sum(one.size_bytes for one in group) <= TARGET_BYTES


def test_repairs_drop_strangers_of_ours_only_and_show_what_is_committed() -> None:
    live = DataFile(f"day=1/{SECOND}", rows=1, size_bytes=1, columns=1)
    known = manifest(ID, files=(live,), retired=(RetiredFile(f"day=1/{FIRST}", 0),))
    orphan = f"day=1/{2:020}-00000000-0"

    repairs = plan_repairs(
        known,
        stored=[f"day=1/{FIRST}", live.name, orphan],
        visible=[f"day=1/{FIRST}", "day=1/of-somebody-else"],
    )

    assert repairs.dropped == (orphan,)
    assert repairs.shown == (live.name,)
    assert repairs.hidden == (f"day=1/{FIRST}",)


def test_without_a_manifest_everything_of_ours_is_dropped() -> None:
    repairs = plan_repairs(None, stored=[FIRST], visible=[])

    assert repairs.dropped == (FIRST,)


def test_a_table_has_a_limit_of_files() -> None:
    check_file_count("t", FILES_MAX)
    with pytest.raises(BadRequestError, match="fewer values"):
        check_file_count("t", FILES_MAX + 1)
