"""Checkpoints and rewrites: what keeps a log short and quick to open."""
