"""One run of a query in a process of its own: `python -m tests.e2e.spark.processes.job '{…}'`."""

import json
import sys
from pathlib import Path

from tests.e2e.spark.queries import Query, small_session


def main() -> None:
    spec = json.loads(sys.argv[1])
    query = Query(Path(spec["folder"]), spec["url"], spec["topic"])
    spark = small_session("job", master=spec["master"], settings=spec["settings"])
    if (query.faults / "driver").exists():
        jvm = spark.sparkContext._gateway.jvm  # type: ignore[union-attr]
        query.order("driver", str(jvm.java.lang.ProcessHandle.current().pid()))
    query.run(spark)
    rows = spark.read.format("ister").options(url=query.url, topic=query.topic).load().count()
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
