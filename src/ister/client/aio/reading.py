"""How subscriptions and readers with a schema make values of messages."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ister.base.errors import IsterError
from ister.client.aio.connection.link import finish
from ister.client.aio.schemas import Schemas
from ister.client.session import Values
from ister.codec import Batch, SchemaRef

if TYPE_CHECKING:
    from ister import schemas


class Reading:
    """How one of them makes values: by its own schema, and those that messages came with.

    Always true of a subscription: a batch is taken only once the schema it was written with is
    known, or known not to be had: asking a message for its value never waits.
    """

    def __init__(self, values: Values, schemas: Schemas) -> None:
        self._values = values
        self._schemas = schemas
        # What was asked for and was not to be had now. It is asked for again once everything at
        # hand is taken: trying with each batch would hold up all of them.
        self._failed: tuple[SchemaRef, IsterError] | None = None

    @classmethod
    def of(cls, schema: object, schemas: Schemas) -> "Reading | None":
        """Return how values of what an application gave as `schema=` are made, if it did."""
        return None if schema is None else cls(Values(schema), schemas)

    async def values(self, batch: Batch) -> list[Any]:
        """Return the values of a batch, fetching the schema it was written with if need be."""
        writer = None
        if (ref := batch.schema) is not None:
            writer = self._schemas.writer(ref)
            if writer is None:
                # Others may wait for the same.
                writer = await asyncio.shield(self._schemas.learn(ref))
        if isinstance(writer, IsterError):
            raise writer
        decode = partial(self._values.decode, topic=batch.topic, writer=writer)
        return [decode(payload) for payload in batch.payloads]

    def ready(self, batches: deque[Batch]) -> bool:
        """Whether the first batch can be taken."""
        return self._unknown(batches) is None

    def arrival(self, batches: deque[Batch], waiter: "asyncio.Future[None]") -> bool:
        """Finish `waiter` when the first batch can be taken; false when it is not for a schema."""
        ref = self._unknown(batches)
        if ref is None:
            self._failed = None
            return False
        self._schemas.learn(ref).add_done_callback(lambda task: self._on_learnt(ref, task, waiter))
        return True

    def decoder(self, batch: Batch) -> Callable[[bytes], Any]:
        """Return what makes values of the payloads of a batch that was taken."""
        ref = batch.schema
        writer = None if ref is None else self._schemas.writer(ref)
        if writer is None and self._failed is not None and self._failed[0] == ref:
            writer = self._failed[1]
        if isinstance(writer, IsterError):
            return partial(_fail, writer)
        return partial(self._values.decode, topic=batch.topic, writer=writer)

    def _unknown(self, batches: deque[Batch]) -> SchemaRef | None:
        if not batches:
            return None
        ref = batches[0].schema
        if ref is None or self._schemas.writer(ref) is not None:
            return None
        return None if self._failed is not None and self._failed[0] == ref else ref

    def _on_learnt(
        self,
        ref: SchemaRef,
        task: "asyncio.Task[schemas.Schema | IsterError]",
        waiter: "asyncio.Future[None]",
    ) -> None:
        if not task.cancelled() and isinstance(outcome := task.result(), IsterError):
            self._failed = (ref, outcome)
        finish(waiter)


def _fail(error: IsterError, _: bytes) -> Any:
    raise error
