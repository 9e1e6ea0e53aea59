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
            # A visit is over when clicks two minutes younger than its end have arrived.
            "watermark": {"column": "at", "delay": "2 minutes"},
        }
    },
    sinks=[{"topic": "/default/visits", "key": "visitor"}],
)
def sessions(clicks: DataFrame) -> DataFrame:
    """Return the finished visits: time, number of clicks, first and last page."""
    visits = clicks.groupBy("visitor", sql.session_window("at", "5 minutes").alias("visit")).agg(
        sql.count("*").alias("clicks"),
        sql.min_by("page", "at").alias("entry"),
        sql.max_by("page", "at").alias("exit"),
    )
    # `ended` is five minutes after the last click, when the session window closes.
    return visits.select(
        "visitor",
        sql.col("visit.start").alias("began"),
        sql.col("visit.end").alias("ended"),
        "clicks",
        "entry",
        "exit",
    )
