"""Visits of a web site: clicks of one visitor that are at most five minutes apart.

ister pipeline run pipeline.py
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from ister.spark import pipeline


@pipeline(
    name="sessions",
    broker="${ISTER_URL:-ister://127.0.0.1:6655}",
    sources={
        "clicks": {
            "topic": "/default/clicks",
            "format": "json",
            "schema": "visitor string, page string, at timestamp",
            # A visit is over when clicks came that are two minutes younger than its end.
            "watermark": {"column": "at", "delay": "2 minutes"},
        }
    },
    sinks=[{"topic": "/default/visits", "key": "visitor"}],
)
def sessions(clicks: DataFrame) -> DataFrame:
    """Return each visit that is over: when, how many clicks, where it began and where it ended."""
    visits = clicks.groupBy("visitor", sql.session_window("at", "5 minutes").alias("visit")).agg(
        sql.count("*").alias("clicks"),
        sql.min_by("page", "at").alias("entry"),
        sql.max_by("page", "at").alias("exit"),
    )
    # `ended` is five minutes after the last click: until then nobody knew that it was the last.
    return visits.select(
        "visitor",
        sql.col("visit.start").alias("began"),
        sql.col("visit.end").alias("ended"),
        "clicks",
        "entry",
        "exit",
    )
