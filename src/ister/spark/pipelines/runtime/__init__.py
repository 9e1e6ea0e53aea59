"""Running a definition on Spark: queries, restarts and progress.

Importing this loads no PySpark yet, but most of what it stands on.
"""

from ister.spark.pipelines.runtime.running import run

__all__ = ["run"]
