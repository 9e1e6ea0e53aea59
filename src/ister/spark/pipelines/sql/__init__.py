"""What can be told of SQL and DDL without Spark, by reading their words and not by a grammar."""

from ister.spark.pipelines.sql.clauses import stateful_parts
from ister.spark.pipelines.sql.ddl import BadDdlError, DdlColumn, check_type, parse_ddl
from ister.spark.pipelines.sql.query import Query, ViewName, analyse, without_semicolon

__all__ = [
    "BadDdlError",
    "DdlColumn",
    "Query",
    "ViewName",
    "analyse",
    "check_type",
    "parse_ddl",
    "stateful_parts",
    "without_semicolon",
]
