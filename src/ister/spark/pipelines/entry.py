"""Where pipelines are entered: one function reads YAML, TOML or Python, the other runs it."""

from collections.abc import Mapping
from pathlib import Path

from ister.spark.pipelines.config import Definition, MalformedError, RunOptions
from ister.spark.pipelines.loading import LANGUAGES, CheckedPipeline, read_file
from ister.spark.pipelines.python import find_pipeline


def read_pipeline(
    target: str,
    *,
    chosen: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> CheckedPipeline:
    """Read and check a pipeline.

    `target` is a YAML or TOML file, `file.py`, `file.py:function` or `module:function`. `chosen`
    are the variables of `--set`.
    """
    if Path(target).suffix.lower() in LANGUAGES:
        return read_file(Path(target), chosen=chosen, environment=environment)
    try:
        found = find_pipeline(target)
    except MalformedError as error:
        return CheckedPipeline(None, (error.remark,))
    return found.read(chosen=chosen, environment=environment)


def run_pipeline(definition: Definition, options: RunOptions) -> int:
    """Run a pipeline until it is done or stopped, and return the exit code of its process.

    Raises `ExtraMissingError` without PySpark, and what is wrong before the first batch.
    """
    # What runs a pipeline takes a while to load: only who runs one waits for it.
    from ister.spark.pipelines.runtime import run

    return run(definition, options)
