"""Metrics of messages that are published later."""

from dataclasses import replace

from tests.unit.wire.samples import BROKER_REPORT

from ister.base import DelayReport
from ister.server.http.metrics import SnapshotCollector
from ister.server.http.snapshot import Snapshot


def test_what_waits_and_what_became_of_the_others_is_told() -> None:
    delayed = DelayReport(waiting=5, published=6, refused=7, dropped=8)
    report = replace(BROKER_REPORT, delayed=delayed)
    found = {
        sample.name: sample.value
        for family in SnapshotCollector(Snapshot(broker=report)).collect()
        for sample in family.samples
        if sample.name.startswith("ister_delayed")
    }

    assert found == {
        "ister_delayed_waiting": 5,
        "ister_delayed_published_total": 6,
        "ister_delayed_refused_total": 7,
        "ister_delayed_dropped_total": 8,
    }
