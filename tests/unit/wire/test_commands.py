"""Control commands: maps with a name, decoded with every type checked."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.wire.samples import COMMANDS

from ister.base import Position, StreamSettings
from ister.base.errors import BadNameError, InvalidError, OffsetGoneError, ProtocolError
from ister.base.limits import BATCH_COUNT_MAX, CONTROL_BYTES_MAX
from ister.wire import (
    Command,
    CreateTopic,
    ErrorReply,
    Hello,
    PublishedEach,
    ReaderEnded,
    Subscribe,
    decode_command,
    error_of,
    error_reply,
)
from ister.wire.commands import encode_command


def packed(**fields: object) -> bytes:
    return msgspec.msgpack.encode(fields)


def test_there_is_a_sample_of_every_command() -> None:
    assert {type(command) for command in COMMANDS.values()} == set(get_args(Command))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_comes_back_as_it_was(name: str) -> None:
    assert decode_command(encode_command(COMMANDS[name])) == COMMANDS[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_a_map_with_its_name_under_op(name: str) -> None:
    assert msgspec.msgpack.decode(encode_command(COMMANDS[name]))["op"] == name


def test_a_hello_is_shown_without_its_token() -> None:
    hello = Hello(client_id="c", agent="a", token="vX3p9mQm2T7yLw0c", secret="0123456789")

    assert repr(hello) == str(hello) == "Hello(client_id='c', agent='a')"


def test_fields_left_out_have_their_defaults() -> None:
    data = packed(op="subscribe", topic="/d/a", subscription="s", consumer="c", channel=1)

    assert decode_command(data) == Subscribe(
        topic="/d/a",
        subscription="s",
        consumer="c",
        channel=1,
        type="exclusive",
        policy="least_loaded",
        key_filters=[],
        filters={},
        start=Position(origin="latest"),
        acks=None,
    )


def test_settings_left_out_have_their_defaults() -> None:
    data = packed(op="create_topic", topic="/d/a", kind="stream", stream={"max_bytes": 7})
    command = decode_command(data)

    assert isinstance(command, CreateTopic)
    assert command.stream == StreamSettings(max_bytes=7)


def test_settings_a_newer_peer_adds_are_skipped() -> None:
    data = packed(op="create_topic", topic="/d/a", stream={"shiny": [1]})

    assert decode_command(data) == CreateTopic(topic="/d/a", stream=StreamSettings())


def test_the_offsets_of_the_largest_batch_fit_a_control_frame() -> None:
    largest = PublishedEach(offsets=[-(2**63)] * BATCH_COUNT_MAX)

    assert len(encode_command(largest)) <= CONTROL_BYTES_MAX


def test_a_reader_that_broke_off_tells_its_error() -> None:
    gone = OffsetGoneError("/d/a", 3, 5)
    ended = ReaderEnded(code=gone.code, text=str(gone), fields=gone.fields())

    assert (type(error_of(ended)), error_of(ended).fields()) == (OffsetGoneError, gone.fields())


def test_fields_a_newer_peer_adds_are_skipped() -> None:
    assert decode_command(packed(op="create_topic", topic="/d/a", shiny=[1])) == CreateTopic(
        topic="/d/a"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        packed(),
        packed(op="fly"),
        packed(op=7),
        packed(topic="/d/a"),
        packed(op="create_topic"),
        packed(op="create_topic", topic=7),
        packed(op="create_topic", topic="/d/a", partitions="3"),
        packed(op="create_topic", topic="/d/a") + b"\0",
        packed(op="create_topic", topic="/d/a")[:-1],
        packed(op="hello", client_id="c", codecs=[1]),
        packed(op="create_topic", topic="/d/a", stream={"max_bytes": "many"}),
        packed(op="create_topic", topic="/d/a", stream=[1]),
        packed(op="seek", topic="/d/a", subscription="s", to=None),
        packed(op="seek", topic="/d/a", subscription="s", to={"at": 1.5}),
        packed(op="commit_transaction", channel=1, topics=[], acks=[[1, 2, 3]]),
        packed(op="commit_transaction", channel=1, topics=[], acks=[[1, 2, 3, None]]),
        msgspec.msgpack.encode([1, 2]),
        msgspec.msgpack.encode("create_topic"),
        b"\x82\xa2op\xaccreate_topic\xa5topic\xa2\xff\xfe",
        b"\x83\xa2op\xa5hello\xa9client_id\xa1x\xa6codecs\xdd\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x83\xa2op\xaccreate_topic\xa5topic\xa1a\xa1x" + b"\x91" * 100_000,
    ],
    ids=[
        "empty",
        "reserved byte",
        "no op",
        "unknown op",
        "op is a number",
        "op is missing",
        "field missing",
        "field of a wrong type",
        "number as text",
        "more behind it",
        "cut short",
        "wrong type in a list",
        "wrong type in settings",
        "settings are a list",
        "no position",
        "wrong type in a position",
        "run too short",
        "run with a hole",
        "a list",
        "a word",
        "not UTF-8",
        "a list of four thousand million",
        "deep",
        "deep in an unknown field",
    ],
)
def test_anything_else_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_command(data)


def test_an_error_travels_as_number_text_and_fields() -> None:
    reply = error_reply(BadNameError("a b", "spaces"))

    assert (reply.code, reply.fields) == (1001, {"name": "a b", "reason": "spaces"})


def test_an_error_arrives_as_what_it_was() -> None:
    error = error_of(error_reply(BadNameError("a b", "spaces")))

    assert (type(error), error.fields()) == (BadNameError, {"name": "a b", "reason": "spaces"})


def test_an_error_of_a_newer_broker_arrives_as_its_base_class() -> None:
    error = error_of(ErrorReply(code=1999, text="new", fields={"what": "x"}))

    assert (type(error), str(error)) == (InvalidError, "new")


anything: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=4,
)
names = st.sampled_from([*COMMANDS, "unknown"])


@given(st.binary(max_size=200))
def test_random_bytes_raise_a_protocol_error_or_are_a_command(data: bytes) -> None:
    try:
        decode_command(data)
    except ProtocolError:
        pass


@given(names, st.dictionaries(st.sampled_from(Subscribe.__struct_fields__) | st.text(), anything))
def test_a_map_of_anything_raises_a_protocol_error_or_is_a_command(
    name: str, fields: dict[str, Any]
) -> None:
    try:
        decode_command(packed(**(fields | {"op": name})))
    except ProtocolError:
        pass


@given(st.sampled_from(list(COMMANDS.values())), st.data())
def test_a_mutated_command_raises_a_protocol_error_or_is_a_command(
    command: Command, data: st.DataObject
) -> None:
    body = bytearray(encode_command(command))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))

    try:
        decode_command(bytes(body))
    except ProtocolError:
        pass


@given(st.integers(0, 10_000), anything, st.text())
def test_any_error_reply_becomes_an_error_with_a_text(code: int, value: Any, text: str) -> None:
    fields = dict.fromkeys(("name", "reason", "topic", "mistakes", "what", "timeout_s"), value)
    try:
        reply = decode_command(packed(op="error_reply", code=code, text=text, fields=fields))
    except ProtocolError:
        return

    assert isinstance(reply, ErrorReply)
    assert isinstance(str(error_of(reply)), str)


def test_a_hello_offers_the_versions_we_speak() -> None:
    hello = Hello(client_id="c")

    assert (hello.version_min, hello.version_max) == (1, 1)


def test_a_command_that_is_not_known_is_quoted_in_part() -> None:
    with pytest.raises(ProtocolError) as raised:
        decode_command(packed(op="x" * 100_000))

    assert len(str(raised.value)) < 300
