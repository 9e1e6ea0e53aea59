"""Running a definition on Spark: queries, restarts, progress and the registry of processes."""
