"""Many batches as one `pyarrow.Table`, when pyarrow is installed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ister.base.errors import ExtraMissingError
from ister.codec.batch import Batch

if TYPE_CHECKING:
    import pyarrow


def arrow_table(batches: Sequence[Batch]) -> "pyarrow.Table":
    """Return `batches` one behind the other, over the same memory.

    Raises `ExtraMissingError` without pyarrow.
    """
    try:
        from ister.codec.arrow import to_table
    except ImportError as error:
        raise ExtraMissingError("to_arrow()", "arrow") from error
    return to_table(batches)
