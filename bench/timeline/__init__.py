"""Timelines against NATS's scheduled messages, an event loop and SQLite."""
