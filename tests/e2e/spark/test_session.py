"""The session of a process belongs to whoever made it."""

from pyspark.sql import SparkSession

from ister.spark.session import session

SETTING = "spark.sql.shuffle.partitions"
OTHER = "spark.sql.session.timeZone"


def test_a_session_that_is_there_keeps_its_settings_but_for_those_that_are_asked_for(
    spark: SparkSession,
) -> None:
    usual = {name: str(spark.conf.get(name)) for name in (SETTING, OTHER)}
    spark.conf.set(SETTING, "7")
    try:
        again = session("another", settings={OTHER: "Europe/Vienna"})

        assert again.sparkContext is spark.sparkContext
        assert again.conf.get(SETTING) == "7"
        assert again.conf.get(OTHER) == "Europe/Vienna"
    finally:
        for name, value in usual.items():
            spark.conf.set(name, value)
