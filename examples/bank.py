"""A bank by event sourcing: a balance is the sum of the events of an account, now or in the past.

    ister serve &
    python examples/bank.py

Ten withdrawals happen at once. Each is decided on a view of the ledger, and stored only if its
account has no newer event, so that no account is overdrawn. Events of other accounts do not
conflict.
"""

import asyncio
from datetime import datetime

import ister
from ister.errors import KeyOffsetMismatchError

LEDGER = "examples.bank"


class RefusedError(Exception):
    """The balance of the account is too low."""


async def change(client: ister.Client, account: str, amount: int) -> ister.MessageId:
    """Deposit or withdraw; retry when another event of the account was stored meanwhile."""
    while True:
        view = await client.view(LEDGER)
        last = view.entry(account) if account in view else None
        balance = (int(last.payload) if last else 0) + amount
        if balance < 0:
            raise RefusedError(f"{account} has {balance - amount}, not {-amount}")
        try:
            return await client.publish(
                LEDGER,
                b"%d" % balance,
                key=account,
                expected_key_offset=last.offset if last else -1,
            )
        except KeyOffsetMismatchError:
            continue


async def balances(client: ister.Client, at: int | datetime | None = None) -> dict[str, int]:
    """Return all balances: now, after the event at an offset, or at a time."""
    view = await client.view(LEDGER, at=at)
    return {account: int(balance) for account, balance in view.items()}


async def main() -> None:
    """Withdraw from one account many times at once, then look at the past."""
    async with ister.connect() as client:
        await client.create_topic(LEDGER, kind="stream", key_offsets=True)
        opened = await change(client, "alice", 100)
        await change(client, "bob", 20)

        tries = [change(client, "alice", -15) for _ in range(10)]
        results = await asyncio.gather(*tries, return_exceptions=True)
        print("withdrawn:", sum(isinstance(one, ister.MessageId) for one in results))
        print("refused:", sum(isinstance(one, RefusedError) for one in results))

        print("now:", await balances(client))
        print("in the beginning:", await balances(client, at=opened.offset))


if __name__ == "__main__":
    asyncio.run(main())
