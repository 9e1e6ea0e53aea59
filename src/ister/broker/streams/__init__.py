"""Streams: publishing, reading, retention."""
