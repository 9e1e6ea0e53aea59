"""A broker, owners and consumers of a timeline, all killed and started again at random moments."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random

from tests.e2e.conftest import BrokerProcess, plain_environment
from tests.e2e.timeline.postgres_server import PostgresServer
from tests.e2e.timeline.timeline_checker import check
from tests.e2e.timeline.timeline_history import History, read_history
from tests.e2e.timeline.timeline_player import LETTERS, TOPIC

import ister
from ister.base.errors import BusyError, TopicNotFoundError

ROOT = Path(__file__).resolve().parent.parent.parent.parent
MODULE = "tests.e2e.timeline.timeline_player"
OWNERS = 2
CONSUMERS = 4
UNDERTAKERS = 2
# The longest lease, a message that was put for later, and a machine that is busy with other tests.
DRAIN_TIMEOUT_S = 60.0
POLL_S = 0.05
# After all messages are gone, how long nothing may come.
SILENCE_S = 0.5
# However slow the machine is.
STROKES_MIN = 3
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
        arguments += [str(self._file), str(storm.calm_file), storm.kind, str(storm.max_leases)]
        self._errors = self._file.with_suffix(".err").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", MODULE, *arguments],
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
    """See the module. What is killed next, and when, follows from the seed.

    The topic is of a `kind`, and has dead letters if messages are leased `max_leases` times only.
    With a `server`, which is killed as well, the timelines are in that database of it.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        kind: str = "timeline",
        max_leases: int = 0,
        server: PostgresServer | None = None,
        database: str = "",
    ) -> None:
        self.kind = kind
        self.max_leases = max_leases
        self._server = server
        self.server_kills = 0
        self.folder = folder
        self.seed = seed
        self.calm_file = folder / "calm"
        self.numbers = count(1)
        self.broker_kills = 0
        self.player_kills = 0
        arguments = ["--timelines", server.url_of(database)] if server else []
        self.broker = BrokerProcess(folder, arguments)
        self._random = Random(seed)
        self._names = count(1)
        self._owners: list[Player] = []
        self._consumers: list[Player] = []
        self._written_before = 0
        # Those whose name another process has taken.
        self._former: list[Player] = []

    @property
    def is_in_postgres(self) -> bool:
        """Whether the timelines are in PostgreSQL."""
        return self._server is not None

    async def run(self, rage_s: float) -> History:
        """Rage for a while, let everything come to rest, and return what happened."""
        self.broker.start()
        try:
            async with ister.connect(self.broker.url) as client:
                await client.create_topic(TOPIC, kind=self.kind, max_leases=self.max_leases)
            self._owners = [self._player("owner") for _ in range(OWNERS)]
            self._consumers = [self._player("consumer") for _ in range(CONSUMERS)]
            if self.max_leases:
                self._consumers += [self._player("undertaker") for _ in range(UNDERTAKERS)]
            # On a busy machine it would else be over before anybody was there.
            await asyncio.to_thread(self._await_progress, DRAIN_TIMEOUT_S)
            await asyncio.to_thread(self._rage, rage_s)
            if self.max_leases:
                await asyncio.to_thread(self._await_letter)
            self.calm_file.touch()
            await asyncio.to_thread(self._end_owners)
            await self._drain()
            # What is gone stays so.
            await asyncio.to_thread(self._restart_broker)
            await asyncio.sleep(SILENCE_S)
            await self._drain()
        finally:
            self._end()
        return read_history(sorted(self.folder.glob("*.log")), self.max_leases)

    def judge(self, history: History) -> None:
        """Fail with the first broken promises, and with how to have this storm again."""
        anomalies = check(history)
        told = "\n".join(f"  {anomaly}" for anomaly in anomalies[:20])
        assert not anomalies, f"{len(anomalies)} anomalies ({self}):\n{told}"

    def __str__(self) -> str:
        return (
            f"TIMELINE_STORM_SEED={self.seed}, {self.broker_kills} kills of the broker,"
            f" {self.server_kills} of its database and {self.player_kills} of others,"
            f" logs in {self.folder}"
        )

    def errors(self) -> str:
        """Return what processes have said that should have said nothing."""
        return "".join(file.read_text() for file in sorted(self.folder.glob("*.err")))

    # The weather

    def _rage(self, rage_s: float) -> None:
        deadline = time.monotonic() + rage_s
        strokes = count(1)
        while next(strokes) <= STROKES_MIN or time.monotonic() < deadline:
            time.sleep(self._random.uniform(0.1, 1.0))
            act, slot = self._random.random(), self._random.randrange(len(self._consumers))
            if act < 0.45:
                if self._random.random() < 0.8:
                    self._await_progress()
                if self._server is not None and self._random.random() < 0.3:
                    self._restart_server(self._server)
                else:
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

    def _await_letter(self) -> None:
        """Return when there was a dead letter."""
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while not any(
            b"handed" in file.read_bytes() for file in self.folder.glob("undertaker*.log")
        ):
            assert time.monotonic() < deadline, f"no dead letter ({self})\n{self.errors()}"
            time.sleep(POLL_S)

    def _await_progress(self, timeout_s: float = PROGRESS_TIMEOUT_S) -> None:
        """Return when clients are back at work since the last restart, or have had time for it."""
        deadline = time.monotonic() + timeout_s
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

    def _restart_server(self, server: PostgresServer) -> None:
        server.kill()
        self.server_kills += 1
        server.start()
        self._written_before = self._written_bytes()

    def _revive(self, slot: int) -> None:
        """Kill a consumer; it comes back under its name, sooner or later."""
        former = self._kill(self._consumers[slot])
        time.sleep(self._random.choice([0.0, 0.0, self._random.uniform(0, 1.0)]))
        self._consumers[slot] = self._player(former.part, former.name)

    def _replace(self, slot: int) -> None:
        """Kill a consumer, and start one of another name: its leases have to end."""
        self._consumers[slot] = self._player(self._kill(self._consumers[slot]).part)

    def _supplant(self, slot: int) -> None:
        """Start another process under the name of one that lives: that gives way."""
        former = self._consumers[slot]
        self._former.append(former)
        self._consumers[slot] = self._player(former.part, former.name)

    def _freeze(self, slot: int) -> None:
        """Have a consumer stand still, maybe for longer than its leases."""
        pid = self._consumers[slot].process.pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self._random.uniform(0.3, 1.5))
        os.kill(pid, signal.SIGCONT)

    def _replace_owner(self, slot: int) -> None:
        self._owners[slot] = self._player(self._kill(self._owners[slot]).part)

    def _kill(self, player: Player) -> Player:
        player.kill()
        self.player_kills += 1
        return player

    def _player(self, part: str, name: str = "") -> Player:
        return Player(self, part, name or f"{part[0]}{next(self._names)}")

    # The end

    def _end_owners(self) -> None:
        for owner in self._owners:
            code = owner.wait()
            assert code == 0, f"{self}\n{self.errors()}"

    async def _drain(self) -> None:
        """Wait until there is no message any more, and then no letter."""
        async with ister.connect(self.broker.url) as client:
            await self._drain_topic(client.timeline(TOPIC))
            # Unless there was none at all.
            with suppress(TopicNotFoundError):
                await self._drain_topic(client.timeline(LETTERS))

    async def _drain_topic(self, timeline: ister.Timeline) -> None:
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
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
