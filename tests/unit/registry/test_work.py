"""Long work in threads does not hold up other work, and stops when nobody waits for it."""

import asyncio
import threading
from collections.abc import Callable

import pytest
from tests.unit.registry.definitions import V1, V2, record

from ister.base.errors import SchemaTooComplexError
from ister.registry import Registry
from ister.registry.executor import THREADS, SchemaExecutor
from ister.schemas import Schema, SchemaType, Steps, parse_schema


class Stuck:
    """Work that runs until it is released, or has no steps left."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.ended = threading.Event()
        self.free = threading.Event()

    def __call__(self, steps: Steps) -> str:
        self.started.set()
        try:
            while not self.free.wait(0.001):
                steps.spend(0)
        finally:
            self.ended.set()
        return "done"


async def wait_for(event: threading.Event) -> None:
    await asyncio.get_running_loop().run_in_executor(None, event.wait, 10)


async def test_long_work_does_not_hold_up_other_work() -> None:
    executor, stuck = SchemaExecutor(), Stuck()
    long = asyncio.create_task(executor.run(stuck, size_bytes=10))
    await wait_for(stuck.started)

    assert await executor.run(lambda _: 5, size_bytes=10) == 5
    stuck.free.set()
    assert await long == "done"


async def test_work_stops_when_nobody_waits_for_it_any_more() -> None:
    executor, stuck = SchemaExecutor(), Stuck()
    task = asyncio.create_task(executor.run(stuck, size_bytes=10))
    await wait_for(stuck.started)
    task.cancel()
    await wait_for(stuck.ended)

    assert stuck.ended.is_set()
    assert not stuck.free.is_set()


async def test_the_smallest_definition_goes_first() -> None:
    executor, stuck, order = SchemaExecutor(), [Stuck() for _ in range(THREADS)], []
    busy = [asyncio.create_task(executor.run(one, size_bytes=1)) for one in stuck]
    for one in stuck:
        await wait_for(one.started)

    def record(size: int) -> Callable[[Steps], None]:
        return lambda _: order.append(size)

    waiting = [asyncio.create_task(executor.run(record(n), size_bytes=n)) for n in (9, 5, 7, 1)]
    await asyncio.sleep(0)
    stuck[0].free.set()
    await asyncio.gather(*waiting)
    stuck[1].free.set()
    await asyncio.gather(*busy)

    assert order == [1, 5, 7, 9]


async def test_cancelled_work_gives_its_turn_to_the_next() -> None:
    executor, stuck = SchemaExecutor(), [Stuck() for _ in range(THREADS)]
    busy = [asyncio.create_task(executor.run(one, size_bytes=1)) for one in stuck]
    for one in stuck:
        await wait_for(one.started)
    given_up = asyncio.create_task(executor.run(lambda _: 1, size_bytes=1))
    next_ = asyncio.create_task(executor.run(lambda _: 2, size_bytes=2))
    await asyncio.sleep(0)
    given_up.cancel()
    for task in busy:
        task.cancel()

    assert await next_ == 2
    assert await executor.run(lambda _: 3, size_bytes=3) == 3


async def test_a_long_registration_does_not_hold_up_others(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = Stuck()

    def parse(type: SchemaType, definition: bytes, steps: Steps) -> Schema:
        if definition == V1:
            stuck(steps)
        return parse_schema(type, definition, steps)

    monkeypatch.setattr("ister.registry.registry.parse_schema", parse)
    slow = asyncio.create_task(registry.register("slow", "json_schema", V1))
    await wait_for(stuck.started)

    assert (await registry.register("quick", "json_schema", V2)).version == 1
    await registry.bind("/default/topic", "quick")
    slow.cancel()
    await wait_for(stuck.ended)
    assert [report.subject for report in registry.subjects()] == ["quick"]


async def test_a_binding_that_takes_long_does_not_hold_up_others(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = Stuck()
    await registry.register("slow", "json_schema", V1)
    await registry.register("quick", "json_schema", V2)

    def parse(type: SchemaType, definition: bytes, steps: Steps) -> Schema:
        if definition == V1:
            stuck(steps)
        return parse_schema(type, definition, steps)

    monkeypatch.setattr("ister.registry.subject.parse_schema", parse)
    slow = asyncio.create_task(registry.bind("/default/slow", "slow"))
    await wait_for(stuck.started)

    await registry.bind("/default/quick", "quick")
    assert [one.topic for one in registry.bindings()] == ["/default/quick"]
    stuck.free.set()
    await slow
    assert len(registry.bindings()) == 2


async def test_all_versions_are_compared_within_one_budget(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ister.schemas.bounds.REGISTER_STEPS_MAX", 100)

    async def register_many() -> None:
        for count in range(1, 100):
            text = record(tuple(f"f{number}" for number in range(count)))
            await registry.register("many", "json", text, mode="backward_transitive")

    with pytest.raises(SchemaTooComplexError) as raised:
        await register_many()

    assert raised.value.limit == "REGISTER_STEPS_MAX"
    assert len(registry.versions("many")) > 1
