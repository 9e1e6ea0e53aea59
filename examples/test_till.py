"""Tests of a blocking program: `ister_url` is a broker on a free port, one for each test."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from examples.till import Till, take_in

import ister


def test_sales_of_all_threads_are_added_up_once(ister_url: str) -> None:
    with ister.sync.connect(ister_url) as client, ThreadPoolExecutor(4) as threads:
        till = Till(client)
        list(threads.map(till.sell, ["fish"] * 20, range(20)))

        assert take_in(client, 20) == sum(range(20))
        with pytest.raises(TimeoutError):
            take_in(client, 1, timeout=0.1)
