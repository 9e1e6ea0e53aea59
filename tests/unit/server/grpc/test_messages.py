"""Danube's messages: what is committed agrees with its sources, and lives beside Danube's own."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from ister.base import errors
from ister.server.grpc.calls.status import StatusCode, code_of
from ister.server.grpc.messages import FILE, message, service

RETRIED = {StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.RESOURCE_EXHAUSTED}


def test_the_descriptors_are_those_of_the_proto_files(tmp_path: Path) -> None:
    made, folder = tmp_path / "made", FILE.parent
    files = sorted(str(file) for file in folder.glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}"]
    subprocess.run([*command, f"--descriptor_set_out={made}", *files], check=True)

    assert _files(FILE) == _files(made), "run: make protos"


def _files(path: Path) -> list[object]:
    return list(FileDescriptorSet.FromString(path.read_bytes()).file)


def test_danubes_own_client_can_be_imported_beside_ours() -> None:
    from danube.proto import DanubeApi_pb2

    ours = message("danube.StreamMessage")(
        request_id=1,
        msg_id={"producer_id": 2, "topic_name": "/default/t", "topic_offset": 3},
        payload=b"x",
        attributes={"a": "b"},
        routing_key="",
    )

    theirs = DanubeApi_pb2.StreamMessage.FromString(ours.SerializeToString())
    assert theirs.SerializeToString(deterministic=True) == ours.SerializeToString(
        deterministic=True
    )
    assert theirs.HasField("routing_key")
    assert not theirs.HasField("schema_id")


@pytest.mark.parametrize(
    "name", ["danube.ProducerService", "danube_schema.SchemaRegistry", "danube_admin.TopicAdmin"]
)
def test_a_service_has_no_methods_but_its_own(name: str) -> None:
    async def nothing(_request: object, _context: object) -> None: ...

    with pytest.raises(AssertionError):
        service(name, {"Nothing": nothing})


def test_clients_repeat_only_what_passes_by_itself() -> None:
    repeated = {cls for cls in errors.leaves().values() if _code(cls) in RETRIED}

    assert repeated == {
        cls
        for cls in errors.leaves().values()
        if issubclass(cls, errors.BusyError | errors.MovedError)
    }


def test_every_error_has_a_code() -> None:
    for cls in errors.leaves().values():
        assert isinstance(_code(cls), StatusCode)


def _code(cls: type[errors.IsterError]) -> StatusCode:
    return code_of(cls.__new__(cls))
