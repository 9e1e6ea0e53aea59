"""Running a pipeline, behind a door that loads Spark only for whoever goes through."""

from ister.spark.pipelines.config.definition import Definition, RunOptions


def run_pipeline(definition: Definition, options: RunOptions) -> int:
    """Run a pipeline until it is done or stopped, and return the exit code of its process.

    Raises `ExtraMissingError` without PySpark, and what is wrong before the first batch.
    """
    from ister.spark.pipelines.runtime.running import run

    return run(definition, options)
