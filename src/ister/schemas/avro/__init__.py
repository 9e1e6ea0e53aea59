"""Avro: records in binary or in container files, resolved as its specification says."""
