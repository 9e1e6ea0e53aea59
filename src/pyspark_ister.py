"""Makes Spark find the data source `ister` by itself: it imports every module called `pyspark_*`.

One such module that cannot be imported hides all the others, so this one needs nothing but
PySpark, and loads the rest when somebody reads or writes.
"""

from ister.spark.data_source import IsterSource as DefaultSource

__all__ = ["DefaultSource"]
