"""Messages and batches ⇄ bytes, with checksums and compression. Spec: docs/batch-format.md."""

from ister.codec.batch import Batch
from ister.codec.checksum import crc32c
from ister.codec.columns import Attributes
from ister.codec.compression import available
from ister.codec.encoding import (
    NO_SCHEMA,
    LaidOut,
    ReplyAddress,
    SchemaRef,
    encode,
    encode_bare,
    encode_columns,
    encode_timed,
)
from ister.codec.layout import HEADER_BYTES, STAMP_BYTES, Codec, Column
from ister.codec.memory import keep_freed_memory
from ister.codec.places import Places, VariablePlace
from ister.codec.table import arrow_table

__all__ = [
    "HEADER_BYTES",
    "NO_SCHEMA",
    "STAMP_BYTES",
    "Attributes",
    "Batch",
    "Codec",
    "Column",
    "LaidOut",
    "Places",
    "ReplyAddress",
    "SchemaRef",
    "VariablePlace",
    "arrow_table",
    "available",
    "crc32c",
    "encode",
    "encode_bare",
    "encode_columns",
    "encode_timed",
    "keep_freed_memory",
]
