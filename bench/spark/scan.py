"""One driver on a cluster: scans the sealed part of the topic, again and again, when told to.

Run as `python -m bench.spark.scan MASTER CORES URL BROKER_PID ENDING_OFFSETS ROWS`; for each line
on stdin it scans once and answers with one line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.spark.measurements import Ground, scan
from ister.spark.tuning import session

# Until the executors have compiled what matters, each on the one core that it has.
WARM_SCANS = 1


def main() -> int:
    """Run it."""
    master, cores, url, broker_pid, ends, rows = sys.argv[1:7]
    settings = {
        "spark.cores.max": cores,
        "spark.executor.cores": "1",
        "spark.executor.memory": "1g",
        "spark.driver.host": "127.0.0.1",
    }
    spark = session("scan", master=master, settings=settings)
    ground = Ground(spark, url, int(broker_pid), Path(), int(rows))
    tasks = 2 * int(cores)
    for _ in range(WARM_SCANS):
        scan(ground, tasks, ends)
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(scan(ground, tasks, ends)), flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
