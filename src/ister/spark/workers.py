"""Makes the garbage collection of Spark's Python workers cheap.

A worker collects after every task, over everything that was ever imported. That takes 30 to 50 ms
of a core while the same micro-batch goes on, which is more than a small micro-batch takes in our
code. Modules and connections that survive the first tasks are frozen: the collector skips them.
"""

import gc
import sys
from typing import Any

# The first one may come in the middle of an import.
_FREEZES = 3
# The module that a worker's process runs, and the only one that collects like that.
_DAEMON = "pyspark.daemon"

_frozen = 0


def spare_modules() -> None:
    """Make the collector of a worker skip what stays; do nothing in any other process."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == _DAEMON and _after_collection not in gc.callbacks:
        gc.callbacks.append(_after_collection)


def _after_collection(phase: str, info: dict[str, Any]) -> None:
    global _frozen  # noqa: PLW0603 (of the process, as the collector is)
    if phase == "stop" and info["generation"] == 2 and _frozen < _FREEZES:
        _frozen += 1
        gc.freeze()
