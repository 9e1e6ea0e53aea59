"""A client of Spark Connect: writes a topic, and copies it to another one as a stream.

Run as a process of its own: `python -m tests.e2e.spark.processes.connect '{"url": ...}'`.
"""

import json
import os
import sys

from tests.e2e.spark.queries import QUICK_START

from ister.spark.tuning import find_java, tuned_settings


def main() -> None:
    spec = json.loads(sys.argv[1])
    os.environ["JAVA_HOME"] = str(find_java())
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

    # A server in a process of its own, on this machine: Spark starts it.
    builder = SparkSession.builder.remote("local[2]")
    settings = tuned_settings("local[2]", cores=2, memory_mib=4_096)
    settings["spark.driver.extraJavaOptions"] += f" {QUICK_START}"
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    numbers = spark.range(spec["rows"]).select(F.col("id").cast("string").alias("value"))
    numbers.write.format("ister").mode("append").options(
        url=spec["url"], topic=spec["first"]
    ).save()
    query = (
        spark.readStream.format("ister")
        .options(url=spec["url"], topic=spec["first"], startingOffsets="earliest")
        .load()
        .select("payload", F.expr("concat('key-', cast(payload as string))").alias("key"))
        .writeStream.format("ister")
        .option("checkpointLocation", spec["checkpoint"])
        .options(url=spec["url"], topic=spec["second"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.read.format("ister").options(url=spec["url"], topic=spec["second"]).load()
    print(json.dumps({"client": type(spark).__module__, "rows": rows.count()}))
    spark.stop()


if __name__ == "__main__":
    main()
