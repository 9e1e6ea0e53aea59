"""A consumer whose process is stopped while it keeps messages back, and goes on too late."""

import asyncio
import os
import signal
import sys

import pytest
from tests.e2e.conftest import BrokerProcess

import ister

pytestmark = pytest.mark.e2e

TOPIC = "/default/reminders"
WAIT_S = 30.0

# Prints the id and the attempt of each message it is handed, up to the one that is the last.
WORKER = """
import asyncio, sys, ister

async def main():
    async with ister.connect(sys.argv[1]) as client:
        timeline = client.timeline(sys.argv[2])
        async with timeline.consume("stopped", lease=0.3, prefetch=5.0) as leases:
            async for lease in leases:
                print(lease.id, lease.attempt, flush=True)
                await lease.done()
                if lease.id == "last":
                    return

asyncio.run(main())
"""


async def wait_until_prefetched(client: ister.Client) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            [report] = [one for one in await client.topics() if one.topic == TOPIC]
            if report.timeline is not None and report.timeline.prefetched:
                return
            await asyncio.sleep(0.01)


async def test_a_lease_that_ended_while_its_consumer_was_stopped_is_not_handed_over(
    broker: BrokerProcess,
) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="timeline", max_leases=0)
        timeline = client.timeline(TOPIC)
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER, broker.url, TOPIC, stdout=asyncio.subprocess.PIPE
        )
        try:
            await timeline.put(b"", after=2.0, id="a")
            await wait_until_prefetched(client)
            os.kill(worker.pid, signal.SIGSTOP)
            async with timeline.consume("other", prefetch=0.0) as leases:
                lease = await leases.receive(timeout=WAIT_S)
                # The one that is stopped may have been sent it again before: it is connected.
                assert lease.id == "a"
                assert lease.attempt >= 2

                os.kill(worker.pid, signal.SIGCONT)
                await lease.done()
            await timeline.put(b"", id="last")
            told, _ = await asyncio.wait_for(worker.communicate(), WAIT_S)
        finally:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()

    assert told.decode().split("\n") == ["last 1", ""]
