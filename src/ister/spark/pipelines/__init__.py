"""Pipelines: read and check a definition, run it on Spark. Importing this loads no PySpark."""

from ister.spark.pipelines.config import Definition, RunOptions, to_json_values
from ister.spark.pipelines.entry import read_pipeline, run_pipeline
from ister.spark.pipelines.loading import CheckedPipeline
from ister.spark.pipelines.processes import Running, find_running, list_running, stop_running
from ister.spark.pipelines.python import Pipeline, pipeline
from ister.spark.pipelines.scaffold import TEMPLATES, new_files, write_files

__all__ = [
    "TEMPLATES",
    "CheckedPipeline",
    "Definition",
    "Pipeline",
    "RunOptions",
    "Running",
    "find_running",
    "list_running",
    "new_files",
    "pipeline",
    "read_pipeline",
    "run_pipeline",
    "stop_running",
    "to_json_values",
    "write_files",
]
