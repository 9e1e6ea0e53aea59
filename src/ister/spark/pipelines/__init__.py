"""Pipelines: definitions, and what runs them on Spark. Importing this loads no PySpark."""

from ister.spark.pipelines.config.definition import Definition, RunOptions, described
from ister.spark.pipelines.entry import read_pipeline, run_pipeline
from ister.spark.pipelines.loading import Outcome
from ister.spark.pipelines.processes import Running
from ister.spark.pipelines.processes import find as find_running
from ister.spark.pipelines.processes import running as list_running
from ister.spark.pipelines.processes import stop as stop_running
from ister.spark.pipelines.python import Pipeline, pipeline
from ister.spark.pipelines.scaffold import TEMPLATES, new_files, write_files

__all__ = [
    "TEMPLATES",
    "Definition",
    "Outcome",
    "Pipeline",
    "RunOptions",
    "Running",
    "described",
    "find_running",
    "list_running",
    "new_files",
    "pipeline",
    "read_pipeline",
    "run_pipeline",
    "stop_running",
    "write_files",
]
