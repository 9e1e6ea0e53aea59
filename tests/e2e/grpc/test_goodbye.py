"""How our gRPC server ends a connection: what it has answered arrives, whatever the peer sends."""

import asyncio
import ssl
import threading
import time
from collections.abc import AsyncIterator
from contextlib import closing

import pytest
from tests.e2e.certificates import Certificates
from tests.e2e.grpc.echoes import COUNT, Served, serve, text_of
from tests.e2e.grpc.peers import GOAWAY, PING, PREFACE, WAIT_S, Peer, frame, settings, window
from tests.e2e.raw import eventually

from ister.base.limits import MIB
from ister.server.certificates import Certificate
from ister.server.security import Authenticator

pytestmark = pytest.mark.e2e

# More than the kernel keeps for a peer that is slow to read.
ANSWER_BYTES = 12 * MIB
# As much as there is, so that everything is handed to the socket at once.
WIDE = PREFACE + settings(s4=2**31 - 1) + window(2**31 - 1 - 65_535)


@pytest.fixture(params=["plain", "tls"])
async def served(
    request: pytest.FixtureRequest, certificates: Certificates
) -> AsyncIterator[tuple[Served, ssl.SSLContext | None]]:
    """A server, and what a client needs for TLS."""
    if request.param == "plain":
        async with serve() as one:
            yield one, None
        return
    authenticator = Authenticator(certificate=Certificate(certificates.cert, certificates.key))
    context = ssl.create_default_context(cafile=certificates.ca)
    context.set_alpn_protocols(["h2"])
    async with serve(authenticator=authenticator) as one:
        yield one, context


async def test_large_answer_arrives_whole_while_the_client_goes_on_sending(
    served: tuple[Served, ssl.SSLContext | None],
) -> None:
    one, tls = served
    ended = threading.Event()

    def read() -> tuple[dict[str, str], int]:
        with closing(Peer(one.address, receive_bytes=32_768, words=WIDE, tls=tls)) as peer:
            request = text_of(count=1, size=ANSWER_BYTES)
            peer.send(peer.request(COUNT, request))
            ended.wait(WAIT_S)
            # The server has ended its half and reads no more calls.
            for _ in range(20):
                peer.send(frame(PING, 0, 0, bytes(8)) * 100)
                time.sleep(0.01)
            found, body = peer.answer(peer.stream)
            peer.wait_for(GOAWAY)
            # TLS cannot end one half: there the client closes first.
            assert tls is not None or peer.frame() is None
            return found, len(body)

    reading = asyncio.create_task(asyncio.to_thread(read))
    await eventually(lambda: one.seen.written == 1)
    end = asyncio.create_task(one.ours.close(WAIT_S))
    await asyncio.sleep(0.1)
    ended.set()
    await end

    found, size_bytes = await reading
    assert (found["grpc-status"], size_bytes) == ("0", ANSWER_BYTES + 5)
