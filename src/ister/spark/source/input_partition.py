"""The partition of a read that Spark passes from the driver, which plans, to a task, which reads.

It has a module of its own because planning runs in many short processes that never read.
"""

from pyspark.sql.datasource import InputPartition

from ister.spark.offsets import OffsetRange


class RangePartition(InputPartition):
    """A range of offsets for one task."""

    def __init__(self, range_: OffsetRange) -> None:
        super().__init__(range_)
        self.range = range_
