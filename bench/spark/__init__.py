"""Spark over topics against Spark over its own Parquet."""
