"""One journal with what is known of it: commits, checkpoints, compaction."""
