"""Spark reads and writes streams: a data source, a sink, and pipelines. The extra `spark`."""
