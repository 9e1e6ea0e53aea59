"""The session of a process belongs to whoever made it."""

import pyspark
from pyspark.sql import SparkSession

from ister.spark.tuning import session

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


def test_workers_use_the_installed_pyspark_and_not_the_zip_that_has_to_be_compiled(
    spark: SparkSession,
) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: pyspark.__file__).first()

    assert found == pyspark.__file__
