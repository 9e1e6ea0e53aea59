"""Pipelines: definitions, and what runs them on Spark."""
