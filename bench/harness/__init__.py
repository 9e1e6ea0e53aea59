"""What all benchmarks share: processes, counters, rounds, thresholds and the report."""
