"""The sink: rows of Spark become messages, each batch exactly once."""
