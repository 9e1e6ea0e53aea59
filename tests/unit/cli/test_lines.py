"""Lines behind a descriptor as chunks of payloads."""

import asyncio
import os
import threading

import pytest

from ister.base.errors import BadRequestError
from ister.cli.console import lines as lines_module
from ister.cli.console.lines import read_lines


async def lines_of(*writes: bytes) -> list[bytes]:
    reader, writer = os.pipe()

    def write() -> None:
        for data in writes:
            os.write(writer, data)
        os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        return [line async for chunk in read_lines(reader) for line in chunk]
    finally:
        thread.join()
        os.close(reader)


@pytest.mark.parametrize(
    ("writes", "lines"),
    [
        ((), []),
        ((b"a\n",), [b"a"]),
        ((b"a\nb",), [b"a", b"b"]),
        ((b"\n",), [b""]),
        ((b"a\n\nb\n",), [b"a", b"", b"b"]),
        ((b"ab", b"c\nd", b"e\n"), [b"abc", b"de"]),
        ((b"a\r\n",), [b"a\r"]),
        ((b"\xff\x00\n",), [b"\xff\x00"]),
    ],
)
async def test_a_line_ends_at_its_newline_and_is_kept_as_it_is(
    writes: tuple[bytes, ...], lines: list[bytes]
) -> None:
    assert await lines_of(*writes) == lines


async def test_many_chunks_keep_their_order() -> None:
    data = b"".join(b"%d\n" % n for n in range(300_000))

    assert await lines_of(data) == [b"%d" % n for n in range(300_000)]


async def test_a_line_that_no_broker_would_take_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines_module, "BATCH_BYTES_CEILING", 10)

    assert await lines_of(b"0123456789") == [b"0123456789"]
    with pytest.raises(BadRequestError):
        await lines_of(b"0123456789x")


async def test_lines_come_before_the_input_ends() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"first\n")
    source = read_lines(reader)

    assert await anext(source) == [b"first"]

    os.close(writer)
    async with asyncio.timeout(10):
        assert [chunk async for chunk in source] == []
    os.close(reader)
