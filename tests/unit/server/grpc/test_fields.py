"""A request with very many fields is refused before it is parsed."""

from random import Random

import pytest
from google.protobuf.message import DecodeError

from ister.base.errors import BadRequestError
from ister.server.grpc.fields import FIELDS_MAX, SMALL_BYTES, check_fields
from ister.server.grpc.messages import message

StreamMessage = message("danube.StreamMessage")


def sent(attributes: int, payload: bytes = bytes(SMALL_BYTES)) -> bytes:
    made = StreamMessage(
        payload=payload,
        request_id=2**64 - 1,
        attributes={f"{n}": "x" for n in range(attributes)},
    )
    encoded: bytes = made.SerializeToString()
    return encoded


def test_a_message_may_have_so_many_fields() -> None:
    check_fields(sent(0))
    check_fields(sent(FIELDS_MAX - 2))

    with pytest.raises(BadRequestError, match="1024 fields"):
        check_fields(sent(FIELDS_MAX - 1))


def test_a_small_message_is_not_looked_at() -> None:
    check_fields(sent(FIELDS_MAX, b"")[:SMALL_BYTES])


@pytest.mark.parametrize("seed", range(50))
def test_no_bytes_make_it_fail_otherwise(seed: int) -> None:
    random = Random(seed)
    data = bytearray(sent(200))
    for _ in range(random.randint(1, 20)):
        data[random.randrange(len(data))] = random.randrange(256)
    cut = bytes(data[: random.choice([len(data), len(data) - 3, SMALL_BYTES + 1])])

    for some in (cut, random.randbytes(SMALL_BYTES + 1), b"\xff" * (SMALL_BYTES + 1)):
        try:
            check_fields(some)
        except BadRequestError:
            continue
        # What it lets through is parsed, or is no message.
        try:
            StreamMessage.FromString(some)
        except DecodeError:
            continue
