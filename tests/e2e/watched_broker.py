"""A broker process that measures the turns of its event loop, and how long an honest client waits.

A turn is from one look of a timer to the next. The client publishes one message after the other
over a socket of its own, in the event loop of the broker; its wait is from one answer to the next.

Both are counted in processor time of the whole process. So all work of the broker counts, in the
event loop or in a thread that keeps the interpreter from it, and nothing that other processes of
the machine do.
"""

import asyncio
import ctypes
import json
import mmap
import sys
import time
from pathlib import Path

from ister.base.limits import MIB
from ister.codec import encode
from ister.config import read_config
from ister.server import Addresses, run_broker
from ister.telemetry import configure_log
from ister.wire import Hello, Opcode, OpenProducer, control_frame, publish_frame
from ister.wire.frames import FrameReader, body_limits

# Between an answer and the next message, and between two looks at the loop.
REST_S = 0.002
LOOK_S = 0.001
# What the broker process shares with the test, as floats: the longest turn and the longest wait in
# seconds, and how many answers there were.
FIGURES_BYTES = 24
TURN, WAIT, ANSWERS = range(3)


Figures = ctypes.Array[ctypes.c_double]


def open_figures(file: Path) -> Figures:
    """Open the figures that the broker process shares with the test."""
    with file.open("r+b") as opened:
        shared = mmap.mmap(opened.fileno(), FIGURES_BYTES)
    return (ctypes.c_double * 3).from_buffer(shared)


async def publish_for_ever(address: str, figures: Figures) -> None:
    """Be the honest client."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    frames = FrameReader(body_limits(MIB))

    async def ask(request: bytes, opcode: int) -> None:
        writer.write(request)
        while opcode not in [frame[0] for frame in frames.receive(await reader.read(MIB))]:
            pass

    await ask(control_frame(Hello(client_id="honest", secret="honest")), Opcode.CONTROL)
    opening = OpenProducer(topic="/default/honest", name="p", channel=1)
    await ask(control_frame(opening, sequence=1), Opcode.CONTROL)
    message = b"".join(publish_frame(1, 1, *encode([b"x"], producer=b"p")))
    answered_s = time.process_time()
    while True:
        await ask(message, Opcode.PUBLISHED)
        before_s, answered_s = answered_s, time.process_time()
        figures[WAIT] = max(figures[WAIT], answered_s - before_s)
        figures[ANSWERS] += 1
        await asyncio.sleep(REST_S)


def look_for_ever(loop: asyncio.AbstractEventLoop, figures: Figures) -> None:
    """Measure the turns of the loop."""
    looked_s = time.process_time()

    def look() -> None:
        nonlocal looked_s
        before_s, looked_s = looked_s, time.process_time()
        figures[TURN] = max(figures[TURN], looked_s - before_s)
        loop.call_later(LOOK_S, look)

    look()


if __name__ == "__main__":
    # Settings by their path, as JSON.
    settings = read_config(flags=json.loads(sys.argv[1]), environment={})
    configure_log(level="info", format="json")
    figures = open_figures(Path(sys.argv[2]))
    tasks: list[asyncio.Task[None]] = []

    def begin(addresses: Addresses) -> None:
        """Have the client begin; when it fails, no more answers are counted."""
        loop = asyncio.get_running_loop()
        look_for_ever(loop, figures)
        tasks.append(loop.create_task(publish_for_ever(addresses.native, figures)))

    run_broker(settings, on_ready=begin)
