"""A blocking consumer of a shared subscription that becomes slow."""

import ister
import ister.sync
from ister.client.session.consuming.sharing_window import PATIENCE_MS
from ister.testing import ThreadedBroker

TOPIC = "/default/jobs"
COUNT = 100


def give_back(client: ister.sync.Client) -> None:
    """Have the client think that all messages it has were sent long ago."""
    session = client._inner.link.session

    async def later() -> None:
        session.receivers.give_back(session.now_ms() + PATIENCE_MS + 1)

    client.thread.run(later())


def test_others_get_what_waits_behind_a_handler_that_hangs() -> None:
    with (
        ThreadedBroker() as broker,
        ister.sync.connect(broker.url) as hung,
        ister.sync.connect(broker.url) as other,
    ):
        hung.create_topic(TOPIC, kind="stream")
        with hung.subscribe(TOPIC, "work", type="shared") as sub:
            # As one that was quick: it has 100 messages, and works on the first.
            sub.fetch(COUNT, timeout=0.0)
            with hung.producer(TOPIC) as producer:
                producer.send_batch([b"%d" % number for number in range(COUNT)])
            first = sub.receive(timeout=30.0)
            with other.subscribe(TOPIC, "work", type="shared") as beside:
                give_back(hung)
                rest = [beside.receive(timeout=30.0) for _ in range(COUNT - 1)]

    assert [int(msg.payload) for msg in (first, *rest)] == list(range(COUNT))
    assert {msg.attempt for msg in rest} == {1}
