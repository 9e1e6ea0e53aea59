"""Decides whether the messages of a batch follow the schema of their topic.

A topic under the policy `none` has no check. Else, for every batch:

| the batch names              | payloads not validated | payloads validated                       |
|---|---|---|
| no schema                    | fault                  | checked by the bound version (see below) |
| a schema of another subject  | fault                  | fault                                    |
| a version that is not there  | fault                  | fault                                    |
| a version that is not taken  | fault                  | fault                                    |
| the subject without version  | good                   | checked by the bound version             |
| a version that is taken      | good                   | checked by that version                  |

The bound version is the one the binding names, else the latest. A binding that names a version
takes no other one; one with `min_version` takes none before it.

A fault refuses the whole batch under `enforce`, with an error that names the first bad message.
Under `warn` it is counted and logged, and the batch goes on.

Always true: a check may be called from any thread, and takes bounded time.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from ister.base.errors import (
    BadSchemaError,
    ExtraMissingError,
    SchemaNotFoundError,
    SchemaTooComplexError,
    SchemaViolationError,
)
from ister.base.limits import CHECK_BYTES_MAX, CHECK_COUNT_MAX, CHECK_WORK_MAX
from ister.codec import Batch
from ister.registry.records import Binding
from ister.registry.subject import Subject, SubjectContents
from ister.schemas import Policy

# A producer with a wrong schema makes a fault with every batch: one line tells as much as all.
WARNING_INTERVAL_MS = 1_000
# Of a schema that is yet to be parsed: too much for the event loop, whatever the batch.
UNREADY_WEIGHT = CHECK_WORK_MAX


@dataclass(slots=True)
class Tally:
    """What the checks of one topic have seen since the start, in batches."""

    checked: int = 0
    violations: int = 0
    # Since the last warning.
    untold: int = 0
    told_ms: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def on_good(self) -> None:
        """Count a batch without fault."""
        with self._lock:
            self.checked += 1

    def on_fault(self) -> None:
        """Count a batch with a fault."""
        with self._lock:
            self.checked += 1
            self.violations += 1

    def take_untold(self, now_ms: int) -> int:
        """Count a fault to warn of; return how many there are if it is time to, else 0."""
        with self._lock:
            self.untold += 1
            # A clock that was set back must not silence us.
            if self.told_ms is not None and 0 <= now_ms - self.told_ms < WARNING_INTERVAL_MS:
                return 0
            self.told_ms = now_ms
            untold, self.untold = self.untold, 0
            return untold


class BindingCheck:
    """Checks the batches of one topic and of its partitions."""

    __slots__ = ("_binding", "_entry", "_logger", "_now_ms", "_tally")

    def __init__(
        self, binding: Binding, entry: Subject, tally: Tally, now_ms: Callable[[], int]
    ) -> None:
        self._binding = binding
        self._entry = entry
        self._tally = tally
        self._now_ms = now_ms
        self._logger: Any = structlog.get_logger("schemas")

    @property
    def binding(self) -> Binding:
        """The binding whose schema it checks."""
        return self._binding

    def check(self, batch: Batch) -> None:
        """Raise `SchemaViolationError` for a batch that is to be refused."""
        reason = self._find_fault(batch)
        if reason is None:
            self._tally.on_good()
            return
        self._tally.on_fault()
        binding = self._binding
        if binding.policy is Policy.ENFORCE:
            raise SchemaViolationError(binding.topic, binding.subject, reason)
        faults = self._tally.take_untold(self._now_ms())
        if faults:
            self._logger.warning(
                "schema_violated",
                topic=binding.topic,
                subject=binding.subject,
                producer=batch.producer,
                reason=reason,
                batches=faults,
            )

    def weight(self, batch: Batch) -> int:
        """Tell how much work each byte of a batch is: 0 when its payloads are not looked at."""
        binding, contents = self._binding, self._entry.contents
        if not binding.validate_payload:
            return 0
        number = batch.schema[1] if batch.schema is not None else 0
        number = number or binding.version or contents.latest
        if number not in contents.versions:
            return 0
        schema = self._entry.find_parsed(number)
        if schema is None or schema.weight is None:
            return UNREADY_WEIGHT
        size_bytes = max(batch.size_bytes, batch.columns_bytes)
        is_small = batch.count <= CHECK_COUNT_MAX and size_bytes <= CHECK_BYTES_MAX
        # Else it is for a thread in any case, which is to unpack the columns as well.
        if is_small and not schema.knows(batch.payloads):
            return UNREADY_WEIGHT
        return schema.weight

    def _find_fault(self, batch: Batch) -> str | None:
        binding, contents = self._binding, self._entry.contents
        named = batch.schema
        if named is None:
            if not binding.validate_payload:
                return "these name none"
            number = 0
        else:
            schema_id, number = named
            if schema_id != contents.record.schema_id:
                return f"these name schema {schema_id}, not {contents.record.schema_id}"
            if number and number not in contents.versions:
                return f"it has no version {number}"
            if number and binding.version and number != binding.version:
                return f"these are of version {number}, and only {binding.version} is taken"
            if number and number < binding.min_version:
                return f"these are of version {number}, and none before {binding.min_version} is"
        if not binding.validate_payload:
            return None
        return self._find_bad_payload(batch, contents, number or binding.version)

    def _find_bad_payload(self, batch: Batch, contents: SubjectContents, number: int) -> str | None:
        try:
            version = contents.get(number)
            faults = self._entry.schema(version).validator().check(batch.payloads)
        except (
            BadSchemaError,
            ExtraMissingError,
            SchemaNotFoundError,
            SchemaTooComplexError,
        ) as error:
            # Stored by a broker that could read it: unchecked messages are not good messages.
            return f"they cannot be checked: {error}"
        if not faults:
            return None
        slot, reason = faults[0]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        return (
            f"message {slot + 1} of {batch.count} is not of version {version.version}: "
            f"{reason}{more}"
        )
