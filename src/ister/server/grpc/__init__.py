"""Doors for Danube's clients and admin tool, over gRPC. Needs the extra `grpc`."""

from ister.server.grpc.door import GrpcDoor

__all__ = ["GrpcDoor"]
