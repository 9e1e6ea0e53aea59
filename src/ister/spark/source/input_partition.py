"""What Spark hands from the driver, which plans, to a task, which reads.

A module of its own: planning starts many short processes, which need nothing of what reading does.
"""

from pyspark.sql.datasource import InputPartition

from ister.spark.offsets import OffsetRange


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, range_: OffsetRange) -> None:
        super().__init__(range_)
        self.range = range_
