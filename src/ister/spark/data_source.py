"""The data source `ister`: streams of a broker as Spark's tables, to read and to write.

Spark pickles it by the name of its class and creates it again in many processes, so it holds only
its options. Readers and writers are imported when Spark asks for one.
"""

from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)

from ister.spark.workers import spare_modules

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

spare_modules()


class IsterSource(DataSource):
    """`spark.read.format("ister")`, `readStream`, `write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ister"

    def schema(self) -> "StructType | str":
        """Return the columns of a read that was given no schema."""
        from ister.spark.clients import client_of
        from ister.spark.options import read_options
        from ister.spark.source import schema_of

        options = read_options(self.options)
        return schema_of(options, partial(client_of, options.broker))

    def reader(self, schema: "StructType") -> DataSourceReader:
        """Return the reader of a batch with these columns."""
        from ister.spark.clients import client_of
        from ister.spark.options import read_options
        from ister.spark.source import batch_reader, layout_of

        options = read_options(self.options, streaming=False)
        return batch_reader(options, layout_of(options, schema, partial(client_of, options.broker)))

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a stream with these columns."""
        from ister.spark.clients import client_of
        from ister.spark.options import read_options
        from ister.spark.source import StreamReader, layout_of

        options = read_options(self.options, streaming=True)
        return StreamReader(options, layout_of(options, schema, partial(client_of, options.broker)))

    # Spark names the arguments when it calls these.

    def writer(self, schema: "StructType", overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001
        """Return the writer of a batch."""
        from ister.spark.sink.writers import BatchSink

        return BatchSink(dict(self.options), schema, overwrite)

    def streamWriter(  # noqa: N802
        self,
        schema: "StructType",
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamArrowWriter:
        """Return the writer of the micro-batches of a stream."""
        from ister.spark.sink.writers import StreamSink

        return StreamSink(dict(self.options), schema)
