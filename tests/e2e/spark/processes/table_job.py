"""A driver that writes JSON files into a table, one batch a file, until all are written.

    python table_job.py FOLDER [BATCH]

With BATCH, it ends as by `kill -9` when the table has that batch, and Spark does not know it yet.
"""

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ister.spark.tables import batch_writer
from ister.spark.tuning import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(folder: Path, last: int | None) -> None:
    spark = session("table-job", master="local[2]", settings={"spark.driver.memory": "1g"})
    rows = spark.readStream.schema("id bigint, part int").option("maxFilesPerTrigger", 1)
    into_table = batch_writer(folder / "t", partition_by=["part"], topics=["/default/orders"])

    def write(df: "DataFrame", batch: int) -> None:
        into_table(df, batch)
        if batch == last:
            os.kill(os.getpid(), signal.SIGKILL)

    query = (
        rows.json(str(folder / "source"))
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
