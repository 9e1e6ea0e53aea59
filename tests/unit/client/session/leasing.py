"""What tests of leases have in common: deliveries, and the broker's answers about them."""

from tests.unit.client.session.wire_end import WireEnd

from ister.client.session import Lease, LeasedBatch, SubscriptionChannel
from ister.wire import Opcode, Run, ack_frames


def lease(
    end: WireEnd, sub: SubscriptionChannel, count: int = 4, *, number: int = 1, start: int = 0
) -> Lease:
    """Deliver messages and hand them out; returns their lease."""
    end.deliver_leased(sub, [b"x"] * count, lease=number, base_offset=start)
    return take(end, sub)


def take(end: WireEnd, sub: SubscriptionChannel) -> Lease:
    """Hand out the next batch; returns its lease."""
    batch = sub.inbox.take()
    assert isinstance(batch, LeasedBatch)
    batch.lease.take(end.now_ms)
    return batch.lease


def acked(end: WireEnd, sub: SubscriptionChannel, sequence: int, refused: list[Run]) -> None:
    """Have the broker answer a frame of acknowledgements."""
    frames = ack_frames(sub.channel, refused, opcode=Opcode.ACKED, sequence=sequence)
    end.session.receive(b"".join(frames))


def renewed(end: WireEnd, *, number: int) -> bool:
    """Whether the client has renewed that lease since the last look."""
    said = end.said()
    return any(run[0] == number for op, _, runs in said if op == Opcode.EXTEND for run in runs)


def ignore(_: object) -> None:
    """For answers that do not matter."""
