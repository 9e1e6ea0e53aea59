"""A job queue: three workers share the jobs; a job that crashes them becomes a dead letter.

    ister serve &
    python examples/job_queue.py

The bad job raises an exception, which ends the subscription of its worker. A supervisor restarts
the worker. After three attempts the job becomes a dead letter, with the exception as the reason.
Once the bug is fixed, the dead letter is sent back to the queue.
"""

import asyncio

import ister

QUEUE, LETTERS = "examples.jobs", "examples.jobs-workers-dlq"
JOBS = 20


class Workshop:
    """Three workers, and the number of jobs each has done."""

    def __init__(self, client: ister.Client) -> None:
        self.client = client
        self.done: dict[str, int] = {}
        self.fixed = False

    async def supervise(self, worker: str) -> None:
        """Run a worker, and restart it when it crashes."""
        while True:
            try:
                await self.work(worker)
            except ValueError as error:
                print(f"{worker} crashed: {error}")

    async def work(self, worker: str) -> None:
        """Do jobs until one raises an exception."""
        async with self.client.subscribe(
            QUEUE, "workers", type="shared", start="earliest", max_deliveries=3, backoff=(0.1,)
        ) as jobs:
            async for job in jobs:
                await asyncio.sleep(0.01)
                if job.payload == b"job 7" and not self.fixed:
                    raise ValueError("7 is not a job")
                await job.ack()
                self.done[worker] = self.done.get(worker, 0) + 1


async def main() -> None:
    """Fill the queue, wait for the dead letter, fix the bug, and send the letter back."""
    async with ister.connect() as client:
        await client.create_topic(QUEUE, kind="stream", retention="workqueue")
        for number in range(JOBS):
            await client.publish(QUEUE, f"job {number}".encode())

        shop = Workshop(client)
        async with client.subscribe(LETTERS, "supervisor", start="earliest") as letters:
            workers = [asyncio.create_task(shop.supervise(f"worker-{n}")) for n in range(3)]
            letter = await letters.receive(timeout=30.0)
            print("dead letter:", letter.payload, letter.attributes["x-failure-reason"])

        shop.fixed = True
        print("sent back:", await client.redrive(QUEUE, "workers"))
        while sum(shop.done.values()) < JOBS:
            await asyncio.sleep(0.01)
        print("done:", sum(shop.done.values()), "by", len(shop.done), "workers")
        for worker in workers:
            worker.cancel()


if __name__ == "__main__":
    asyncio.run(main())
