"""Our gRPC server as the clients of `grpcio` see it, beside that of `grpcio` itself.

What is parametrized by `served` holds for both servers.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tests.e2e.certificates import Certificates
from tests.e2e.grpc.echoes import (
    CODES,
    COUNT,
    ECHO,
    FAIL,
    LATER,
    UNLIMITED,
    WAIT,
    Served,
    serve,
    serve_reference,
    text_of,
)
from tests.e2e.raw import eventually

from ister.base.limits import KIB, MIB
from ister.server.certificates import Certificate
from ister.server.grpc.calls.session import PENDING_BYTES, REQUEST_BYTES_MAX
from ister.server.security import Authenticator

pytestmark = pytest.mark.e2e

WAIT_S = 15.0
CALLS = 1_000
SIZES = [0, 1, 16 * KIB - 5, 16 * KIB, MIB, 4 * MIB, 4 * MIB + 1]
TEXTS = [
    "",
    "words",
    "x" * 600,
    "größer als 5 €, 日本",
    "line\r\nnull\0bell\x07\x7f",
    "100 % %41 %zz",
]


@pytest.fixture(params=["ister", "grpcio"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    """Both servers, one after the other."""
    async with serve() if request.param == "ister" else serve_reference() as one:
        yield one


@pytest.fixture
async def ours() -> AsyncIterator[Served]:
    """Our server, for what each may do in its own way."""
    async with serve() as one:
        yield one


async def ended(call: Any) -> tuple[grpc.StatusCode, str]:
    """Return the status of a call, and its text."""
    try:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


async def unary(channel: grpc.aio.Channel, path: str, data: bytes = b"", **how: Any) -> bytes:
    answer: bytes = await channel.unary_unary(path)(data, **{"timeout": WAIT_S, **how})
    return answer


# Status


@pytest.mark.parametrize("code", range(1, 17))
async def test_every_code_and_text_arrives_as_it_was(served: Served, code: int) -> None:
    async with served.channel() as channel:
        for text in TEXTS:
            call = channel.unary_unary(FAIL)(text_of(code=code, text=text), timeout=WAIT_S)
            assert await ended(call) == (CODES[code], text)
            stream = channel.unary_stream(COUNT)(
                text_of(count=2, size=3, code=code, text=text), timeout=WAIT_S
            )
            assert await ended(stream) == (CODES[code], text)


async def test_a_method_that_is_not_there_is_unimplemented(served: Served) -> None:
    async with served.channel() as channel:
        for path in ("/t.T/None", "/none/Echo", "/t.T/Echo/More", "/x"):
            assert (await ended(unary(channel, path)))[0] is grpc.StatusCode.UNIMPLEMENTED


async def test_a_synchronous_client_gets_the_same(served: Served) -> None:
    def calls() -> list[Any]:
        with grpc.insecure_channel(served.address, UNLIMITED) as channel:
            seen: list[Any] = [channel.unary_unary(ECHO)(b"x", timeout=WAIT_S)]
            seen.append(list(channel.unary_stream(COUNT)(text_of(count=3, size=1), timeout=WAIT_S)))
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(FAIL)(text_of(code=5, text="ä"), timeout=WAIT_S)
            return [*seen, caught.value.code(), caught.value.details()]

    expected = [b"x", [b"\0"] * 3, grpc.StatusCode.NOT_FOUND, "ä"]
    assert await asyncio.to_thread(calls) == expected


# Messages


@pytest.mark.parametrize("path", [ECHO, LATER])
async def test_messages_of_all_sizes_arrive_both_ways(served: Served, path: str) -> None:
    async with served.channel() as channel:
        for size in SIZES:
            data = bytes(range(256)) * (size // 256) + bytes(size % 256)
            assert await unary(channel, path, data) == data


@pytest.mark.parametrize("size", [0, 1, 16 * KIB, MIB])
async def test_streams_of_messages_arrive_whole(served: Served, size: int) -> None:
    async with served.channel() as channel:
        stream = channel.unary_stream(COUNT)(text_of(count=20, size=size), timeout=WAIT_S)
        assert [message async for message in stream] == [bytes(size)] * 20


async def test_a_stream_without_messages_ends_well(served: Served) -> None:
    async with served.channel() as channel:
        stream = channel.unary_stream(COUNT)(text_of(count=0, size=0), timeout=WAIT_S)
        assert await ended(stream) == (grpc.StatusCode.OK, "")


async def test_a_request_at_the_limit_is_taken_and_one_over_it_is_refused(ours: Served) -> None:
    async with ours.channel() as channel:
        assert len(await unary(channel, ECHO, bytes(REQUEST_BYTES_MAX))) == REQUEST_BYTES_MAX
        code, text = await ended(unary(channel, ECHO, bytes(REQUEST_BYTES_MAX + 1)))

        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert f"{REQUEST_BYTES_MAX} at most" in text
        assert await unary(channel, ECHO, b"next") == b"next"
    assert ours.ours.counts.accepted == 1


async def test_an_answer_over_the_client_s_limit_costs_that_call(served: Served) -> None:
    async with served.channel(("grpc.max_receive_message_length", 4 * MIB)) as channel:
        assert len(await unary(channel, ECHO, bytes(4 * MIB))) == 4 * MIB
        code, _ = await ended(unary(channel, ECHO, bytes(4 * MIB + 1)))

        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await unary(channel, ECHO, b"next") == b"next"


async def test_a_thousand_calls_in_flight_are_all_answered(served: Served) -> None:
    async with served.channel() as channel:
        waiting = [asyncio.ensure_future(unary(channel, WAIT)) for _ in range(CALLS)]
        await eventually(lambda: served.seen.waiting == CALLS)
        # Others overtake them.
        data = [b"%d" % n for n in range(CALLS)]
        assert await asyncio.gather(*(unary(channel, ECHO, one) for one in data)) == data
        served.seen.go.set()

        assert await asyncio.gather(*waiting) == [b"waited"] * CALLS


async def test_a_compressed_request_is_refused_and_the_client_told_what_is_not(
    ours: Served,
) -> None:
    async with ours.channel() as channel:
        call = channel.unary_unary(ECHO)(
            bytes(1_000), timeout=WAIT_S, compression=grpc.Compression.Gzip
        )
        assert (await ended(call))[0] is grpc.StatusCode.UNIMPLEMENTED
        found = {**dict(await call.initial_metadata()), **dict(await call.trailing_metadata())}
        assert "gzip" not in str(found.get("grpc-accept-encoding", ""))
        assert await unary(channel, ECHO, b"next") == b"next"


# Deadlines and cancellation


async def test_a_deadline_ends_the_call_at_both_ends(served: Served) -> None:
    async with served.channel() as channel:
        code, _ = await ended(unary(channel, WAIT, timeout=0.1))

        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: served.seen.cancelled == 1)
        assert await unary(channel, ECHO, b"next") == b"next"


async def test_a_deadline_beyond_all_time_is_no_deadline(served: Served) -> None:
    async with served.channel() as channel:
        assert await unary(channel, LATER, b"x", timeout=10**9) == b"x"


async def test_cancelling_a_call_cancels_its_handler(served: Served) -> None:
    async with served.channel() as channel:
        calls = [channel.unary_unary(WAIT)(b"", timeout=WAIT_S) for _ in range(10)]
        await eventually(lambda: served.seen.waiting == 10)
        for call in calls:
            call.cancel()

        await eventually(lambda: (served.seen.waiting, served.seen.cancelled) == (0, 10))
        assert await unary(channel, ECHO, b"next") == b"next"


async def test_cancelling_a_stream_stops_its_handler(served: Served) -> None:
    async with served.channel() as channel:
        stream = channel.unary_stream(COUNT)(text_of(count=10**9, size=16 * KIB), timeout=WAIT_S)
        assert await stream.read() == bytes(16 * KIB)
        stream.cancel()
        await eventually(stream.done)

        assert await unary(channel, ECHO, b"next") == b"next"
        # Handlers that run have room, so only one that was cancelled stands still.
        written = -1
        while written != served.seen.written:
            written = served.seen.written
            await asyncio.sleep(0.05)


async def test_a_closed_channel_cancels_what_is_under_way(served: Served) -> None:
    async with served.channel() as channel:
        calls = [asyncio.ensure_future(ended(unary(channel, WAIT))) for _ in range(10)]
        await eventually(lambda: served.seen.waiting == 10)
    await eventually(lambda: served.seen.cancelled == 10)
    await asyncio.gather(*calls, return_exceptions=True)


# Metadata


@pytest.mark.parametrize(
    "metadata",
    [
        [(f"name-{n}", f"value {n}") for n in range(100)],
        [("same", f"{n}") for n in range(100)],
        [("large", "x" * 6_000)],
        [("some-bin", bytes(range(256))), ("none-bin", b"")],
        [("empty", ""), ("user-agent", "own"), ("x", "~!@#$%^&*()")],
    ],
    ids=["many", "repeated", "large", "binary", "odd"],
)
async def test_metadata_of_any_kind_stops_no_call(served: Served, metadata: Any) -> None:
    async with served.channel() as channel:
        for _ in range(3):
            assert await unary(channel, ECHO, b"x", metadata=metadata) == b"x"


async def test_metadata_over_the_limit_costs_that_call(served: Served) -> None:
    async with served.channel() as channel:
        code, text = await ended(unary(channel, ECHO, b"x", metadata=[("large", "x" * 20_000)]))

        # The server of `grpcio` has a code here that Danube's clients take for a busy broker.
        theirs, ours = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT
        assert code is (ours if served.is_ours else theirs)
        assert "16384" in text
        assert await unary(channel, ECHO, b"next") == b"next"


# Connections


async def test_pings_of_the_client_keep_its_connection(served: Served) -> None:
    often = [("grpc.keepalive_time_ms", 50), ("grpc.keepalive_timeout_ms", 2_000)]
    always = [("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_pings_without_data", 0)]
    async with served.channel(*often, *always) as channel:
        call = asyncio.ensure_future(unary(channel, WAIT))
        await eventually(lambda: served.seen.waiting == 1)
        # Several pings; the reference, which forbids more than two, is not given as many.
        await asyncio.sleep(0.12)
        served.seen.go.set()

        assert await call == b"waited"


async def test_going_away_answers_calls_under_way_and_sends_new_ones_elsewhere() -> None:
    async with serve() as first:
        port = int(first.address.rpartition(":")[2])
        async with first.channel(("grpc.initial_reconnect_backoff_ms", 100)) as channel:
            waiting = [asyncio.ensure_future(unary(channel, WAIT)) for _ in range(20)]
            await eventually(lambda: first.seen.waiting == 20)
            closing = asyncio.create_task(first.ours.close(WAIT_S))
            await asyncio.sleep(0)
            async with serve(port=port) as second:
                answer = await unary(channel, ECHO, b"new", wait_for_ready=True)
                assert (answer, second.ours.counts.accepted) == (b"new", 1)
                assert not closing.done()
                first.seen.go.set()

                assert await asyncio.gather(*waiting) == [b"waited"] * 20
                await closing


async def test_an_answer_that_waits_for_its_reader_is_sent_before_the_end(ours: Served) -> None:
    async with ours.channel() as channel:
        stream = channel.unary_stream(COUNT)(text_of(count=1, size=4 * MIB), timeout=WAIT_S)
        await eventually(lambda: ours.seen.written == 1)
        closing = asyncio.create_task(ours.ours.close(WAIT_S))
        await asyncio.sleep(0.1)

        assert await stream.read() == bytes(4 * MIB)
        assert await stream.code() is grpc.StatusCode.OK
        await closing


async def test_a_request_on_its_way_is_taken_and_answered_before_the_end(ours: Served) -> None:
    ours.seen.go.set()
    async with ours.channel() as channel:
        call = asyncio.ensure_future(unary(channel, WAIT, bytes(24 * MIB)))
        await eventually(lambda: any(one.buffered_bytes for one in ours.ours.sessions))
        closing = asyncio.create_task(ours.ours.close(WAIT_S))

        assert await call == b"waited"
        await closing


async def test_streams_that_nobody_reads_hold_up_no_others(ours: Served) -> None:
    async with ours.channel(("grpc.http2.bdp_probe", 0)) as channel:
        endless = text_of(count=10**9, size=MIB)
        idle = [channel.unary_stream(COUNT)(endless, timeout=WAIT_S) for _ in range(4)]
        for stream in idle:
            assert await stream.read() == bytes(MIB)
        written = -1
        while written != ours.seen.written:
            written = ours.seen.written
            await asyncio.sleep(0.1)
        [session] = ours.ours.sessions

        assert session.connection.out.pending_bytes < PENDING_BYTES
        assert await unary(channel, ECHO, bytes(MIB)) == bytes(MIB)
        other = channel.unary_stream(COUNT)(text_of(count=20, size=MIB), timeout=WAIT_S)
        assert [len(message) async for message in other] == [MIB] * 20
        # What was kept is there for a reader that comes back.
        for stream in idle:
            assert [len(await stream.read()) for _ in range(5)] == [MIB] * 5
            stream.cancel()


@pytest.mark.parametrize("lookahead", [1, 65_536, 16 * MIB])
async def test_windows_of_any_size_let_everything_through(served: Served, lookahead: int) -> None:
    sizes = [("grpc.http2.lookahead_bytes", lookahead), ("grpc.http2.bdp_probe", 0)]
    async with served.channel(*sizes, ("grpc.http2.max_frame_size", 2**24 - 1)) as channel:
        stream = channel.unary_stream(COUNT)(text_of(count=40, size=100_000), timeout=WAIT_S)
        assert [len(message) async for message in stream] == [100_000] * 40
        assert await unary(channel, ECHO, bytes(4 * MIB)) == bytes(4 * MIB)


async def test_calls_over_tls_choose_http2_by_alpn(certificates: Certificates) -> None:
    authenticator = Authenticator(certificate=Certificate(certificates.cert, certificates.key))
    async with serve(authenticator=authenticator) as one:
        credentials = grpc.ssl_channel_credentials(certificates.ca.read_bytes())
        async with grpc.aio.secure_channel(one.address, credentials, UNLIMITED) as channel:
            assert await unary(channel, ECHO, bytes(4 * MIB)) == bytes(4 * MIB)
            assert (await ended(unary(channel, FAIL, text_of(code=5, text="ä"))))[1] == "ä"
        context = ssl.create_default_context(cafile=certificates.ca)
        context.set_alpn_protocols(["http/1.1", "h2"])
        host, _, port = one.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        writer.close()
        await writer.wait_closed()
