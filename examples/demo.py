"""`make demo`: a real broker, a producer and two subscriptions, then a pipeline, in the terminal.

Everything below uses the public API only. The broker is `ister serve` in its own process on free
ports. The clients share this process, so the figures show what one Python process can do.
The pipeline is `ister pipeline run examples/demo.yaml`, also in its own process: Spark adds up
orders as they arrive. Without Java or PySpark the demo skips this half and prints the reason.

    python examples/demo.py --seconds 8 --pipeline-seconds 0
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import ister

TOPIC = "/default/demo.orders"
PING_TOPIC = "/default/demo.ping"
PAYLOAD = b'{"order": 4711, "item": "danube salmon", "quantity": 2, "price_cents": 2350}'
READY_TIMEOUT_S = 30.0
REFRESH_S = 0.25
# Sends per turn of the event loop: a full batch, and short enough to keep the view alive.
SENDS_AT_ONCE = 500
# Between two pings, so that latency is measured beside the load and not instead of it.
PING_S = 0.01

PIPELINE = Path(__file__).with_name("demo.yaml")
SHOP_TOPIC = "/default/demo.shop"
TOTALS_TOPIC = "/default/demo.totals"
REGIONS = ("north", "east", "south", "west")
# Twenty times a second, so that totals move at every look: 2,000 orders a second.
SHOP_S, SHOP_ORDERS = 0.05, 100
# Java, Spark and the first batch: 12 s on two idle cores, longer on a busy machine.
SPARK_TIMEOUT_S = 120.0
# One or two batches are in progress when the shop closes, each half a second or less.
CATCH_UP_S = 15.0
PIPELINE_END_S = 15.0


@dataclass(slots=True)
class Tally:
    """Counters of the demo. Everything runs on one event loop, so plain fields suffice."""

    sent: int = 0
    received: dict[str, int] = field(default_factory=dict)
    round_trips_us: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))
    marks: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=9))

    def rates(self, now_s: float) -> tuple[float, float]:
        """Return messages sent and received per second over the last two seconds or so."""
        self.marks.append((now_s, self.sent, sum(self.received.values())))
        then_s, sent, received = self.marks[0]
        elapsed_s = now_s - then_s
        if elapsed_s <= 0:
            return 0.0, 0.0
        grown = sum(self.received.values()) - received
        return (self.sent - sent) / elapsed_s, grown / elapsed_s


def main() -> int:
    """Run the demo and return its exit code."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seconds", type=float, default=6.0, help="how long to run")
    options.add_argument(
        "--pipeline-seconds", type=float, default=5.0, help="how long to show totals; 0 for none"
    )
    chosen = options.parse_args()
    console = Console(highlight=False)
    try:
        with tempfile.TemporaryDirectory(prefix="ister-demo-") as folder:
            began = time.perf_counter()
            with running_broker(Path(folder)) as url:
                ready_s = time.perf_counter() - began
                console.print(f"broker at [bold cyan]{url}[/], ready in {ready_s:.2f} s")
                with asyncio.Runner(loop_factory=find_loop_factory()) as runner:
                    runner.run(show(url, chosen.seconds, console))
                    if chosen.pipeline_seconds > 0:
                        runner.run(show_totals(url, chosen.pipeline_seconds, Path(folder), console))
                console.print("the broker ends cleanly now")
    except KeyboardInterrupt:
        console.print("stopped")
    return 0


@contextlib.contextmanager
def running_broker(folder: Path) -> Iterator[str]:
    """Start `ister serve` on free ports, yield its url, and stop it gracefully."""
    ready_file, log_file = folder / "ready.json", folder / "log"
    command = [sys.executable, "-m", "ister", "serve", "--port", "0", "--http-port", "0"]
    command += ["--no-grpc"]
    command += ["--data", str(folder / "data"), "--ready-file", str(ready_file)]
    with log_file.open("wb") as log:
        # A session of its own: Ctrl-C reaches only this process, which then stops the broker.
        broker = subprocess.Popen(command, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not ready_file.exists():
            if broker.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the broker did not start:\n{log_file.read_text()}")
            time.sleep(0.005)
        yield str(json.loads(ready_file.read_text())["url"])
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.wait()


async def show(url: str, seconds: float, console: Console) -> None:
    """Run producer, subscriptions and view side by side for `seconds`."""
    tally = Tally()
    async with ister.connect(url) as sender, ister.connect(url) as receiver:
        began = time.perf_counter()
        tasks = [
            asyncio.create_task(work)
            for work in (
                consume_each(receiver, "billing", tally),
                consume_batches(receiver, "analytics", tally),
                ping(sender, receiver, tally),
                produce(sender, tally),
            )
        ]
        try:
            await watch(tasks, tally, seconds, console)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        report = await sender.broker()
        summarise(tally, time.perf_counter() - began, report.messages_dropped, console)


async def produce(client: ister.Client, tally: Tally) -> None:
    """Send as fast as the broker acknowledges."""
    async with client.producer(TOPIC, name="shop") as producer:
        while True:
            for _ in range(SENDS_AT_ONCE):
                producer.send_nowait(PAYLOAD)
            tally.sent += SENDS_AT_ONCE
            # Limits the messages in flight, so that the pings do not queue behind them.
            await producer.flush()


async def consume_each(client: ister.Client, name: str, tally: Tally) -> None:
    """Receive messages one by one."""
    tally.received[name] = 0
    async with client.subscribe(TOPIC, name) as sub:
        async for _ in sub:
            tally.received[name] += 1


async def consume_batches(client: ister.Client, name: str, tally: Tally) -> None:
    """Receive whole columnar batches."""
    tally.received[name] = 0
    async with client.subscribe(TOPIC, name) as sub:
        async for batch in sub.batches():
            tally.received[name] += len(batch)


async def ping(sender: ister.Client, receiver: ister.Client, tally: Tally) -> None:
    """Measure publish to receive, one message at a time, beside the load."""
    async with (
        receiver.subscribe(PING_TOPIC, "pings") as sub,
        sender.producer(PING_TOPIC) as producer,
    ):
        while True:
            start = time.perf_counter()
            producer.send_nowait(b"ping")
            await sub.receive(timeout=5.0)
            tally.round_trips_us.append((time.perf_counter() - start) * 1e6)
            await asyncio.sleep(PING_S)


async def watch(
    tasks: list[asyncio.Task[None]], tally: Tally, seconds: float, console: Console
) -> None:
    """Show the tally until the time is up, or raise what ended a task."""
    deadline = time.monotonic() + seconds
    live = Live(console=console, auto_refresh=False, transient=True)
    with live if console.is_terminal else contextlib.nullcontext():
        spoken_s = time.monotonic()
        while time.monotonic() < deadline:
            done, _ = await asyncio.wait(tasks, timeout=REFRESH_S)
            for task in done:
                task.result()
            now_s = time.monotonic()
            rates = tally.rates(now_s)
            if console.is_terminal:
                live.update(view(tally, rates), refresh=True)
            elif now_s - spoken_s >= 1.0:
                spoken_s = now_s
                console.print(f"sent {rates[0]:,.0f} msg/s, received {rates[1]:,.0f} msg/s")


def view(tally: Tally, rates: tuple[float, float]) -> Panel:
    """Return a panel with the current figures."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("messages", justify="right")
    table.add_column("msg/s", justify="right")
    table.add_row("producer [cyan]shop[/]", f"{tally.sent:,}", f"[green]{rates[0]:,.0f}[/]")
    for name, count in tally.received.items():
        table.add_row(f"subscription [cyan]{name}[/]", f"{count:,}", "")
    table.add_row("both subscriptions", "", f"[green]{rates[1]:,.0f}[/]")
    p50_us, p99_us = percentiles(tally)
    latency = Text(
        f"publish to receive under this load: p50 {p50_us:,.0f} µs, p99 {p99_us:,.0f} µs"
    )
    return Panel(Group(table, Text(), latency), title=f"Ister: {TOPIC}", expand=False)


def summarise(tally: Tally, elapsed_s: float, dropped: int, console: Console) -> None:
    """Print the final figures."""
    received = sum(tally.received.values())
    p50_us, p99_us = percentiles(tally)
    console.print(
        f"sent [bold]{tally.sent:,}[/] messages of {len(PAYLOAD)} B "
        f"([bold]{tally.sent / elapsed_s:,.0f}[/] msg/s), two subscriptions received "
        f"[bold]{received:,}[/] ([bold]{received / elapsed_s:,.0f}[/] msg/s)",
        soft_wrap=True,
    )
    console.print(
        f"publish to receive beside that load: p50 {p50_us:,.0f} µs, p99 {p99_us:,.0f} µs"
    )
    console.print(f"the broker dropped {dropped:,} messages")


def percentiles(tally: Tally) -> tuple[float, float]:
    """Return the median and the 99th percentile of the round trips, in microseconds."""
    if len(tally.round_trips_us) < 2:
        return 0.0, 0.0
    cuts = statistics.quantiles(tally.round_trips_us, n=100, method="inclusive")
    return cuts[49], cuts[98]


# The second half: a pipeline.


@dataclass(slots=True)
class Totals:
    """The orders that the shop sent, and the totals from Spark by region."""

    sent: int = 0
    worth: Decimal = Decimal(0)
    orders: dict[str, int] = field(default_factory=dict)
    sums: dict[str, Decimal] = field(default_factory=dict)

    @property
    def counted(self) -> int:
        """Number of orders in the totals."""
        return sum(self.orders.values())


async def show_totals(url: str, seconds: float, folder: Path, console: Console) -> None:
    """Run a shop and the pipeline beside it; show its totals for `seconds` once there are some."""
    totals = Totals()
    async with ister.connect(url) as client:
        for topic in (SHOP_TOPIC, TOTALS_TOPIC):
            await client.create_topic(topic, kind="stream")
        with running_pipeline(url, folder) as pipeline:
            console.print("\n[bold]ister pipeline run examples/demo.yaml[/]: Spark adds up orders")
            closed = asyncio.Event()
            shop = asyncio.create_task(run_shop(client, totals, closed))
            reading = asyncio.create_task(read_totals(client, totals))
            try:
                if not await first_totals(totals, pipeline, console):
                    return
                await watch_totals([shop, reading], totals, seconds, console)
                closed.set()
                await shop
                await catch_up(totals, reading)
            finally:
                for task in (shop, reading):
                    task.cancel()
                await asyncio.gather(shop, reading, return_exceptions=True)
    summarise_totals(totals, console)


@contextlib.contextmanager
def running_pipeline(url: str, folder: Path) -> Iterator["Pipeline"]:
    """Run the pipeline in its own process, yield it, and stop it as Ctrl-C would."""
    words = folder / "pipeline"
    command = [sys.executable, "-m", "ister", "pipeline", "run", str(PIPELINE)]
    command += ["--checkpoint", str(folder / "checkpoint"), "--no-restart"]
    # The notes for `ister pipeline list` are removed with the folder of the demo.
    environment = os.environ | {"ISTER_URL": url, "XDG_STATE_HOME": str(folder / "state")}
    with words.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=environment,
            start_new_session=True,
        )
    try:
        yield Pipeline(process, words)
    finally:
        process.terminate()
        try:
            process.wait(PIPELINE_END_S)
        except subprocess.TimeoutExpired:
            # Java is in the same process group and ends, too.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The process, and the file with its output."""

    process: subprocess.Popen[bytes]
    words: Path

    def last_words(self) -> str:
        """Return the last line of output: a failed `ister` command ends with one line of error."""
        lines = [line.strip() for line in self.words.read_text(errors="replace").splitlines()]
        last = next((line for line in reversed(lines) if line), "it said nothing")
        return last.removeprefix("ister: ")


async def run_shop(client: ister.Client, totals: Totals, closed: asyncio.Event) -> None:
    """Send orders at an even pace until the shop is closed. All are stored when this returns."""
    chance = random.Random()
    async with client.producer(SHOP_TOPIC, name="shop") as producer:
        while not closed.is_set():
            for _ in range(SHOP_ORDERS):
                cents = chance.randrange(100, 10_000)
                amount = f"{cents // 100}.{cents % 100:02d}"
                region = chance.choice(REGIONS)
                producer.send_nowait(f'{{"region": "{region}", "amount": {amount}}}'.encode())
                totals.worth += Decimal(amount)
            totals.sent += SHOP_ORDERS
            await producer.flush()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(closed.wait(), SHOP_S)


async def read_totals(client: ister.Client, totals: Totals) -> None:
    """Copy the totals that the pipeline publishes."""
    async with client.subscribe(TOTALS_TOPIC, "demo", start="earliest") as sub:
        async for message in sub:
            row = json.loads(message.payload, parse_float=Decimal)
            totals.orders[row["region"]] = row["orders"]
            totals.sums[row["region"]] = Decimal(row["total"])
            await message.ack()


async def first_totals(totals: Totals, pipeline: Pipeline, console: Console) -> bool:
    """Wait for the first totals from Spark; print the reason if there will be none."""
    began = time.monotonic()
    status = console.status("starting Spark") if console.is_terminal else None
    with status or contextlib.nullcontext():
        while not totals.orders:
            if pipeline.process.poll() is not None:
                words = escape(pipeline.last_words())
                console.print(f"no live totals: {words}", soft_wrap=True)
                return False
            if time.monotonic() - began > SPARK_TIMEOUT_S:
                console.print(f"no live totals: none came in {SPARK_TIMEOUT_S:.0f} s")
                return False
            await asyncio.sleep(0.05)
    console.print(f"first totals after {time.monotonic() - began:.1f} s, with the start of Spark")
    return True


async def watch_totals(
    tasks: list[asyncio.Task[None]], totals: Totals, seconds: float, console: Console
) -> None:
    """Show the totals whenever they change until the time is up, or raise what ended a task."""
    deadline = time.monotonic() + seconds
    shown, spoken_s = 0, 0.0
    live = Live(console=console, auto_refresh=False, transient=True)
    with live if console.is_terminal else contextlib.nullcontext():
        while (now_s := time.monotonic()) < deadline:
            done, _ = await asyncio.wait(tasks, timeout=0.05)
            for task in done:
                task.result()
            if totals.counted == shown:
                continue
            if console.is_terminal:
                live.update(view_totals(totals), refresh=True)
                shown = totals.counted
            elif now_s - spoken_s >= 1.0:
                spoken_s, shown = now_s, totals.counted
                console.print(
                    ", ".join(f"{name} {totals.orders[name]:,}" for name in sorted(totals.orders))
                    + f": {sum(totals.sums.values()):,.2f} in all",
                    soft_wrap=True,
                )


async def catch_up(totals: Totals, reading: asyncio.Task[None]) -> None:
    """Wait until every order is in the totals."""
    deadline = time.monotonic() + CATCH_UP_S
    while totals.counted < totals.sent and time.monotonic() < deadline:
        await asyncio.wait([reading], timeout=0.05)
        if reading.done():
            reading.result()


def view_totals(totals: Totals) -> Panel:
    """Return a panel with the current totals."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("region")
    table.add_column("orders", justify="right")
    table.add_column("worth", justify="right")
    for name in sorted(totals.orders):
        table.add_row(
            f"[cyan]{name}[/]", f"{totals.orders[name]:,}", f"[green]{totals.sums[name]:,.2f}[/]"
        )
    behind = Text(f"{totals.sent:,} sent, {totals.counted:,} of them in the totals")
    return Panel(Group(table, Text(), behind), title=f"Ister: {TOTALS_TOPIC}", expand=False)


def summarise_totals(totals: Totals, console: Console) -> None:
    """Print whether Spark and the shop agree."""
    if not totals.orders:
        return
    agree = totals.counted == totals.sent and sum(totals.sums.values()) == totals.worth
    console.print(
        f"the shop sent [bold]{totals.sent:,}[/] orders worth [bold]{totals.worth:,.2f}[/]; "
        f"Spark counted [bold]{totals.counted:,}[/] worth "
        f"[bold]{sum(totals.sums.values()):,.2f}[/]" + (", each exactly once" if agree else ""),
        soft_wrap=True,
    )


def find_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    sys.exit(main())
