"""Calls to a broker's gRPC ports, with messages made from the same descriptors as the broker's."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from ister.server.grpc.messages import FILE

WAIT_S = 20.0

_NUMBERS = count(1)


def new_name(word: str = "t") -> str:
    """Return the name of a topic that nobody else uses."""
    return f"/default/{word}-{next(_NUMBERS)}"


class Port:
    """One gRPC port. `call("TopicAdmin/CreateTopic", name=...)` returns the response."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.insecure_channel(address)
        self._pool = DescriptorPool()
        for file in FileDescriptorSet.FromString(FILE.read_bytes()).file:
            self._pool.Add(file)

    def call(self, method: str, **fields: Any) -> Any:
        """Call a method and return its response; raises `grpc.RpcError`."""
        service, _, word = method.partition("/")
        full = f"{_package_of(service)}.{service}"
        described = self._pool.FindServiceByName(full).methods_by_name[word]
        request = GetMessageClass(described.input_type)(**fields)
        response = self._send(f"/{full}/{word}", request.SerializeToString())
        return GetMessageClass(described.output_type).FromString(response)

    def code(self, method: str, **fields: Any) -> grpc.StatusCode:
        """Return the status that a call is answered with, which says something if it is not OK."""
        return _code_of(lambda: self.call(method, **fields))

    def code_of_bytes(self, method: str, data: bytes) -> grpc.StatusCode:
        """Return the status that a request of any bytes is answered with."""
        return _code_of(lambda: self._send(f"/{_package_of(method)}.{method}", data))

    def methods(self, package: str) -> Iterator[str]:
        """Return the methods of every service of a package."""
        for file in FileDescriptorSet.FromString(FILE.read_bytes()).file:
            if file.package == package:
                for service in file.service:
                    yield from (f"{service.name}/{method.name}" for method in service.method)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _send(self, path: str, data: bytes) -> bytes:
        answer: bytes = self._channel.unary_unary(path)(data, timeout=WAIT_S)
        return answer


def _package_of(service: str) -> str:
    return "danube_schema" if service.startswith("SchemaRegistry") else "danube_admin"


def _code_of(call: Callable[[], object]) -> grpc.StatusCode:
    try:
        call()
    except grpc.RpcError as error:
        failed: Any = error
        assert failed.details(), "a status without a text"
        code: grpc.StatusCode = failed.code()
        return code
    return grpc.StatusCode.OK
