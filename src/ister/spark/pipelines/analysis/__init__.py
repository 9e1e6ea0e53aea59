"""What is wrong with a definition, found before Spark starts.

`check_definition` compares the parts of a pipeline with each other, `function_mistakes` looks at
its Python functions, and `check_upgrade` compares it with the checkpoint of an earlier run.
"""

from ister.spark.pipelines.analysis.checking import check_definition
from ister.spark.pipelines.analysis.functions import call_function, import_beside
from ister.spark.pipelines.analysis.upgrade import (
    SHUFFLE_PARTITIONS,
    Fingerprint,
    check_upgrade,
    fingerprint,
    parse_fingerprint,
)

__all__ = [
    "SHUFFLE_PARTITIONS",
    "Fingerprint",
    "call_function",
    "check_definition",
    "check_upgrade",
    "fingerprint",
    "import_beside",
    "parse_fingerprint",
]
