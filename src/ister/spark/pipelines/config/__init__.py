"""What a pipeline file says: from YAML, TOML or a decorator's arguments to a `Definition`.

Nothing here needs PySpark. Mistakes are collected in `Notes`, each with its line.
"""

from ister.spark.pipelines.config.definition import (
    DEAD_LETTERS,
    MESSAGE_COLUMNS,
    ConsoleSink,
    Deduplicate,
    Definition,
    OutputMode,
    PayloadFormat,
    PipelineSink,
    PipelineSource,
    PipelineStep,
    PythonStep,
    ReferenceTable,
    RunOptions,
    SqlStep,
    TableFormat,
    TableSink,
    TopicSink,
    Trigger,
    Watermark,
    broker_options,
    hide_secrets,
    reveal,
    to_json_values,
)
from ister.spark.pipelines.config.elements import check_name
from ister.spark.pipelines.config.fields import Notes, nearest
from ister.spark.pipelines.config.parsing import (
    FILE_BYTES_MAX,
    MalformedError,
    node_of_arguments,
    parse_file,
)
from ister.spark.pipelines.config.pipeline import definition_of
from ister.spark.pipelines.config.positions import ConfigNode, FileLine, Remark

__all__ = [
    "DEAD_LETTERS",
    "FILE_BYTES_MAX",
    "MESSAGE_COLUMNS",
    "ConfigNode",
    "ConsoleSink",
    "Deduplicate",
    "Definition",
    "FileLine",
    "MalformedError",
    "Notes",
    "OutputMode",
    "PayloadFormat",
    "PipelineSink",
    "PipelineSource",
    "PipelineStep",
    "PythonStep",
    "ReferenceTable",
    "Remark",
    "RunOptions",
    "SqlStep",
    "TableFormat",
    "TableSink",
    "TopicSink",
    "Trigger",
    "Watermark",
    "broker_options",
    "check_name",
    "definition_of",
    "hide_secrets",
    "nearest",
    "node_of_arguments",
    "parse_file",
    "reveal",
    "to_json_values",
]
