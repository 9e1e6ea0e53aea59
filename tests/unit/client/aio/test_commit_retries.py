"""How long a commit is retried."""

import asyncio

import pytest
from tests.unit.client.aio.test_transaction import OUT, Log

from ister.base.errors import StorageFailedError, StorageUncertainError
from ister.base.limits import COMMIT_REMEMBERED_MS, COMMIT_RETRIED_MS_MAX


async def test_a_commit_is_not_retried_when_the_broker_may_have_forgotten_it() -> None:
    log = Log()
    log.refusals = [StorageUncertainError("no disk")] + [StorageFailedError("no disk")] * 2_000
    async with log.connect(timeout=3_600.0) as client:
        tx = client.transaction()
        tx.send(OUT, b"a")
        committing = asyncio.ensure_future(tx.commit())
        await log.clock.elapse(COMMIT_RETRIED_MS_MAX / 1000 + 1)

        assert COMMIT_RETRIED_MS_MAX * 2 <= COMMIT_REMEMBERED_MS
        assert committing.done()
        with pytest.raises(StorageUncertainError):
            await committing
