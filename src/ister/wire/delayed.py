"""Messages that are sent now and published later. Spec: docs/protocol.md."""

import msgspec

from ister.wire.tagged import Listed, Tagged


class SendDelayed(Tagged):
    """Keep the messages of a batch, and publish each when it is due.

    As the producer on `channel` would then. A message is due at `due_ms`, but not before
    `delays_ms` from now; either has one for every message, or none at all. `word` is of the
    client's choice: what is sent again under it is kept once. The answer is `Done`, when all are
    on the disk.
    """

    channel: int
    word: str
    # Unstamped and not numbered, as in PUBLISH.
    batch: bytes
    due_ms: Listed[int] = msgspec.field(default_factory=list)
    delays_ms: Listed[int] = msgspec.field(default_factory=list)
