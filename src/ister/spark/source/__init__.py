"""The source: streams of a broker as Spark reads them, in batches and in micro-batches."""
