"""Protobuf: `.proto` text or descriptors, without a compiler."""
