"""A cron topic on the bench of timelines, whose clock is moved, with one line for each thing."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tests.unit.broker.timelines.timelinebench import GROUP, TOPIC, TimelineBench

from ister.base.errors import IsterError
from ister.broker.timelines import CronRules
from ister.timeline import MemoryStore, Row, RuleRow, parse_rule

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
# The bench begins at 22:13:20: so long until the next minute.
TO_MINUTE_MS = 40_000


class CronBench(TimelineBench):
    """See the module."""

    def __init__(self, store: MemoryStore | None = None, **settings: Any) -> None:
        super().__init__(store, kind="cron", **settings)

    @property
    def rules(self) -> CronRules:
        return self.timelines.get_rules(TOPIC)

    def go_to(self, text: str) -> None:
        """Move the clock on to a time in UTC."""
        self.go_to_ms(_time_ms(text))

    def go_to_ms(self, time_ms: int) -> None:
        self.advance(time_ms - self.now_ms)

    def set_clock(self, text: str) -> None:
        """Set the clock to a time in UTC, and let that be noticed."""
        self.clock.skew_ms += _time_ms(text) - self.now_ms
        self.advance(1_000)

    def told(self, call: Callable[[Callable[[Any], object]], object]) -> Any:
        """Ask for something, and return what was told."""
        answers: list[Any] = []
        call(answers.append)
        self.settle()
        [answer] = answers
        return answer

    def rule(
        self,
        id: str,
        expression: str = "* * * * *",
        zone: str = "UTC",
        *,
        payload: bytes = b"go",
        group: str = GROUP,
        **options: Any,
    ) -> Any:
        """Make a rule; return its version, or an error."""
        rule = parse_rule(expression, zone, **options)
        return self.told(
            lambda done: self.rules.put(
                id, group=group, rule=rule, payload=payload, attributes=b"", done=done
            )
        )

    def revise(
        self,
        id: str,
        expression: str,
        *,
        payload: bytes = b"go",
        version: int = 0,
        group: str = GROUP,
        **options: Any,
    ) -> Any:
        rule = parse_rule(expression, **options)
        return self.told(
            lambda done: self.rules.update(
                id,
                group=group,
                version=version,
                rule=rule,
                payload=payload,
                attributes=b"",
                done=done,
            )
        )

    def pause(self, id: str, *, version: int = 0, group: str = GROUP) -> Any:
        return self.told(lambda d: self.rules.pause(id, group=group, version=version, done=d))

    def resume(self, id: str, *, version: int = 0, group: str = GROUP) -> Any:
        return self.told(lambda d: self.rules.resume(id, group=group, version=version, done=d))

    def drop(self, id: str, *, version: int = 0, group: str = GROUP) -> Any:
        return self.told(lambda d: self.rules.delete(id, group=group, version=version, done=d))

    def get_rule(self, id: str) -> RuleRow:
        found = self.told(lambda done: self.rules.get(id, done))
        if isinstance(found, IsterError):
            raise found
        assert isinstance(found, RuleRow)
        return found

    def list_rules(self) -> list[RuleRow]:
        found = self.told(lambda done: self.rules.page((-1, 0), 100, done))
        assert isinstance(found, list)
        return found

    def messages(self) -> list[Row]:
        """What is in the topic: messages of rules that are not done."""
        number = self.rules.topic.number
        return self.store.page(number, 0, 2**60, (-1, 0), 10_000)

    def ids(self) -> list[str]:
        return [row.id for row in self.messages()]


def slots(ids: list[str]) -> list[str]:
    """Return the times that messages are of: hours and minutes in UTC."""
    return [name.partition("T")[2][:5] for name in ids]


def _time_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)
