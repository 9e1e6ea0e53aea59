"""What is compared with a checkpoint before Spark starts, and what is said about it."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from ister.base.errors import CheckpointMismatchError
from ister.spark.pipelines.config.definition import (
    Definition,
    PipelineSource,
    RunOptions,
    SqlStep,
    TopicSink,
)
from ister.spark.pipelines.runtime.building import Flow
from ister.spark.pipelines.runtime.checkpoint import prepare
from ister.spark.pipelines.runtime.progress import JsonView
from ister.spark.pipelines.runtime.runner import in_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SQL = "SELECT key, count(*) AS n FROM orders GROUP BY key"
OTHER_SQL = "SELECT key, max(offset) AS n FROM orders GROUP BY key"


class Words(JsonView):
    """A view that keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def say(self, text: str) -> None:
        """Keep a message instead of showing it."""
        self.said.append(text)


def pipeline(folder: Path, sql: str = SQL) -> Definition:
    return Definition(
        name="p",
        broker="ister://127.0.0.1:6655",
        sources=(PipelineSource(name="orders", topics=("/default/orders",)),),
        steps=(SqlStep(name="counts", sql=sql),),
        sinks=(TopicSink(name="out", view="counts", topic="/default/out"),),
        checkpoint=str(folder),
    )


def prepared(definition: Definition, start: str | None = None) -> list[str]:
    """Return what is said."""
    words = Words()
    prepare(definition, RunOptions(start=start), words)
    return words.said


def begin(folder: Path, sink: str = "out") -> None:
    """Leave what Spark leaves when it has planned the first batch of a sink."""
    (folder / sink / "offsets").mkdir(parents=True)
    (folder / sink / "offsets" / "0").write_text("v1\n{}")


def test_a_change_is_refused_once_the_first_batch_was_planned(tmp_path: Path) -> None:
    prepared(pipeline(tmp_path))
    begin(tmp_path)

    with pytest.raises(CheckpointMismatchError):
        prepared(pipeline(tmp_path, OTHER_SQL))


def test_anything_may_change_before_the_first_batch(tmp_path: Path) -> None:
    before = replace(pipeline(tmp_path), settings={"spark.sql.shuffle.partitions": "3"})
    after = replace(pipeline(tmp_path, OTHER_SQL), settings={"spark.sql.shuffle.partitions": "4"})
    prepared(before)
    # The query was started, and then failed before there was a batch.
    (tmp_path / "out" / "offsets").mkdir(parents=True)

    assert prepared(after) == []
    # What holds from now on is what made the checkpoint.
    begin_later = tmp_path / "out" / "offsets" / "0"
    begin_later.write_text("v1\n{}")
    assert prepared(after) == []
    with pytest.raises(CheckpointMismatchError):
        prepared(before)


def test_a_start_that_a_checkpoint_overrules_is_told(tmp_path: Path) -> None:
    assert prepared(pipeline(tmp_path), start="earliest") == []
    begin(tmp_path)

    [said] = prepared(pipeline(tmp_path), start="earliest")

    assert said == (
        "pipeline p: warning: --from earliest is not followed by out: it goes on from the "
        f"checkpoint in {tmp_path}; to start over, give another place with --checkpoint"
    )
    assert prepared(pipeline(tmp_path)) == []


def test_a_fingerprint_that_cannot_be_read_is_written_anew(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / "pipeline.json").write_text('{"version": 1, "sha')

    assert prepared(pipeline(tmp_path)) == []
    with pytest.raises(CheckpointMismatchError):
        prepared(pipeline(tmp_path, OTHER_SQL))


@pytest.mark.parametrize(
    ("start", "names"),
    [("latest", ["dead_letters.orders", "out"]), ("earliest", ["out", "dead_letters.orders"])],
)
def test_dead_letters_begin_first_where_a_source_is_read_from_its_end(
    tmp_path: Path, start: str, names: list[str]
) -> None:
    definition = pipeline(tmp_path).overridden(start=start)
    [sink] = definition.sinks
    letters = replace(sink, name="dead_letters.orders")
    # The rows of a flow are Spark's: here nobody looks at them.
    flows = [Flow(one, cast("DataFrame", None)) for one in (sink, letters)]

    assert [flow.name for flow in in_order(flows, definition)] == names
