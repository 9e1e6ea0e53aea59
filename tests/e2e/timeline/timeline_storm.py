"""A broker, owners and consumers of a timeline, all killed and started again at random moments."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from random import Random

from tests.e2e.conftest import BrokerProcess, plain_environment
from tests.e2e.timeline.timeline_checker import check
from tests.e2e.timeline.timeline_history import History, read_history
from tests.e2e.timeline.timeline_player import TOPIC

import ister
from ister.base.errors import BusyError

ROOT = Path(__file__).resolve().parent.parent.parent.parent
MODULE = "tests.e2e.timeline.timeline_player"
OWNERS = 2
CONSUMERS = 4
# The longest lease, a message that was put for later, and a machine that is busy with other tests.
DRAIN_TIMEOUT_S = 60.0
POLL_S = 0.05
# After all messages are gone, how long nothing may come.
SILENCE_S = 0.5
# A hundred lines of all processes together.
PROGRESS_BYTES = 10_000
PROGRESS_TIMEOUT_S = 2.0


class Player:
    """A process that plays a part, under a name."""

    def __init__(self, storm: "TimelineStorm", part: str, name: str) -> None:
        self.name = name
        self.part = part
        self._file = storm.folder / f"{part}-{next(storm.numbers)}.log"
        arguments = [part, storm.broker.url, name, f"{storm.seed} {self._file.stem}"]
        self._errors = self._file.with_suffix(".err").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", MODULE, *arguments, str(self._file), str(storm.calm_file)],
            cwd=ROOT,
            env=plain_environment(),
            stderr=self._errors,
        )

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        """Wait for its end; return its exit code."""
        self._errors.close()
        return self.process.wait(DRAIN_TIMEOUT_S)


class TimelineStorm:
    """See the module. What is killed next, and when, follows from the seed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.calm_file = folder / "calm"
        self.numbers = count(1)
        self.broker_kills = 0
        self.player_kills = 0
        self.broker = BrokerProcess(folder)
        self._random = Random(seed)
        self._names = count(1)
        self._owners: list[Player] = []
        self._consumers: list[Player] = []
        self._written_before = 0
        # Those whose name another process has taken.
        self._former: list[Player] = []

    async def run(self, rage_s: float) -> History:
        """Rage for a while, let everything come to rest, and return what happened."""
        self.broker.start()
        try:
            async with ister.connect(self.broker.url) as client:
                await client.create_topic(TOPIC, kind="timeline", max_leases=0)
            self._owners = [self._owner() for _ in range(OWNERS)]
            self._consumers = [self._consumer() for _ in range(CONSUMERS)]
            await asyncio.to_thread(self._rage, rage_s)
            self.calm_file.touch()
            await asyncio.to_thread(self._end_owners)
            await self._drain()
            # What is gone stays so.
            await asyncio.to_thread(self._restart_broker)
            await asyncio.sleep(SILENCE_S)
            await self._drain()
        finally:
            self._end()
        return read_history(sorted(self.folder.glob("*.log")))

    def judge(self, history: History) -> None:
        """Fail with the first broken promises, and with how to have this storm again."""
        anomalies = check(history)
        told = "\n".join(f"  {anomaly}" for anomaly in anomalies[:20])
        assert not anomalies, f"{len(anomalies)} anomalies ({self}):\n{told}"

    def __str__(self) -> str:
        return (
            f"TIMELINE_STORM_SEED={self.seed}, {self.broker_kills} kills of the broker and"
            f" {self.player_kills} of others, logs in {self.folder}"
        )

    def errors(self) -> str:
        """Return what processes have said that should have said nothing."""
        return "".join(file.read_text() for file in sorted(self.folder.glob("*.err")))

    # The weather

    def _rage(self, rage_s: float) -> None:
        deadline = time.monotonic() + rage_s
        while time.monotonic() < deadline:
            time.sleep(self._random.uniform(0.1, 1.0))
            act, slot = self._random.random(), self._random.randrange(CONSUMERS)
            if act < 0.45:
                if self._random.random() < 0.8:
                    self._await_progress()
                self._restart_broker()
            elif act < 0.65:
                self._revive(slot)
            elif act < 0.77:
                self._replace(slot)
            elif act < 0.85:
                self._supplant(slot)
            elif act < 0.93:
                self._freeze(slot)
            else:
                self._replace_owner(slot % OWNERS)

    def _await_progress(self) -> None:
        """Return when clients are back at work since the last restart, or have had time for it."""
        deadline = time.monotonic() + PROGRESS_TIMEOUT_S
        while self._written_bytes() < self._written_before + PROGRESS_BYTES:
            if time.monotonic() > deadline:
                return
            time.sleep(POLL_S)

    def _written_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.glob("*-*.log"))

    def _restart_broker(self) -> None:
        self.broker.kill()
        self.broker_kills += 1
        if self._random.random() < 0.3:
            time.sleep(self._random.uniform(0, 1.0))
        self.broker.restart()
        self._written_before = self._written_bytes()

    def _revive(self, slot: int) -> None:
        """Kill a consumer; it comes back under its name, sooner or later."""
        name = self._kill(self._consumers[slot])
        time.sleep(self._random.choice([0.0, 0.0, self._random.uniform(0, 1.0)]))
        self._consumers[slot] = self._consumer(name)

    def _replace(self, slot: int) -> None:
        """Kill a consumer, and start one of another name: its leases have to end."""
        self._kill(self._consumers[slot])
        self._consumers[slot] = self._consumer()

    def _supplant(self, slot: int) -> None:
        """Start another process under the name of one that lives: that gives way."""
        self._former.append(self._consumers[slot])
        self._consumers[slot] = self._consumer(self._consumers[slot].name)

    def _freeze(self, slot: int) -> None:
        """Have a consumer stand still, maybe for longer than its leases."""
        pid = self._consumers[slot].process.pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self._random.uniform(0.3, 1.5))
        os.kill(pid, signal.SIGCONT)

    def _replace_owner(self, slot: int) -> None:
        self._kill(self._owners[slot])
        self._owners[slot] = self._owner()

    def _kill(self, player: Player) -> str:
        player.kill()
        self.player_kills += 1
        return player.name

    def _owner(self) -> Player:
        return Player(self, "owner", f"o{next(self._names)}")

    def _consumer(self, name: str = "") -> Player:
        return Player(self, "consumer", name or f"w{next(self._names)}")

    # The end

    def _end_owners(self) -> None:
        for owner in self._owners:
            code = owner.wait()
            assert code == 0, f"{self}\n{self.errors()}"

    async def _drain(self) -> None:
        """Wait until there is no message any more."""
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        async with ister.connect(self.broker.url) as client:
            timeline = client.timeline(TOPIC)
            while True:
                left: int | BusyError
                try:
                    left = await timeline.count()
                except BusyError as error:
                    left = error
                if left == 0:
                    return
                if time.monotonic() > deadline:
                    rows = [str(message) async for message in timeline.list()]
                    raise AssertionError(f"{left} left ({self}):\n" + "\n".join(rows[:10]))
                await asyncio.sleep(POLL_S)

    def _end(self) -> None:
        for player in (*self._owners, *self._consumers, *self._former):
            if player.process.poll() is None:
                player.process.kill()
            player.wait()
        self.broker.kill()
