"""How clients that answer requests keep up, and what load that makes."""

import pytest

from ister.subscriptions import Responder, loads_of_responders
from ister.subscriptions.responders import QUICK_MS, SLOW, SPAN_MS


class Time:
    """Stands at `ms` until it is moved."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def time() -> Time:
    return Time()


def answering(time: Time, delay_ms: int) -> Responder:
    """Return one that has answered one request after a delay, beginning now."""
    responder = Responder(time)
    responder.on_asked(1)
    time.ms += delay_ms
    responder.on_answered(1)
    time.ms -= delay_ms
    return responder


def test_what_was_asked_waits_until_it_is_answered(time: Time) -> None:
    responder = Responder(time)
    responder.on_asked(5)
    responder.on_answered(2)

    assert responder.waiting == 3


def test_answers_to_nothing_change_nothing(time: Time) -> None:
    responder = Responder(time)
    responder.on_answered(7)
    responder.on_asked(1)

    assert (responder.waiting, responder.delay_ms()) == (1, (1, False))


@pytest.mark.parametrize("at_once", [1, 4])
def test_the_delay_is_that_of_the_average_request(time: Time, at_once: int) -> None:
    responder = Responder(time)
    for _ in range(5):
        responder.on_asked(at_once)
        time.ms += 20
        responder.on_answered(at_once)

    assert responder.delay_ms() == (20, True)


def test_the_delay_grows_while_nothing_is_answered(time: Time) -> None:
    responder = Responder(time)
    responder.on_asked(1)
    time.ms += 300

    assert responder.delay_ms() == (300, False)


@pytest.mark.parametrize(("ms", "waiting"), [(2 * SPAN_MS - 1, 1), (2 * SPAN_MS, 0)])
def test_what_was_never_answered_is_forgotten_after_two_spans(
    time: Time, ms: int, waiting: int
) -> None:
    responder = Responder(time)
    responder.on_asked(1)
    time.ms += ms
    responder.delay_ms()

    assert responder.waiting == waiting


def test_what_was_asked_lately_is_not_forgotten(time: Time) -> None:
    responder = Responder(time)
    responder.on_asked(1)
    time.ms += SPAN_MS
    responder.on_asked(1)
    time.ms += SPAN_MS
    responder.delay_ms()

    assert responder.waiting == 1


def test_a_delay_is_forgotten_as_well(time: Time) -> None:
    responder = answering(time, 500)
    time.ms += SPAN_MS
    before = responder.delay_ms()
    time.ms += SPAN_MS

    assert (before, responder.delay_ms()) == ((500, True), (1, False))


def test_a_long_rest_is_over_at_once(time: Time) -> None:
    responder = answering(time, 5)
    time.ms += 10**15

    assert responder.delay_ms() == (1, False)


def test_requests_without_answers_are_load(time: Time) -> None:
    quick, hung = answering(time, 1), answering(time, 1)
    hung.on_asked(3)

    assert loads_of_responders([2, 2], [quick, hung]) == [2, 5]


def test_where_nobody_answers_nothing_changes(time: Time) -> None:
    responders = [Responder(time), Responder(time)]
    responders[0].on_asked(1_000)

    assert loads_of_responders([1, 2], responders) == [1, 2]


@pytest.mark.parametrize(("times", "load"), [(SLOW - 1, 0), (SLOW, 1), (5 * SLOW, 25)])
def test_a_slow_one_counts_as_if_it_had_more(time: Time, times: int, load: int) -> None:
    responders = [answering(time, 10), answering(time, 10 * times)]
    time.ms += 1_000

    assert loads_of_responders([0, 0], responders) == [0, load]


@pytest.mark.parametrize(("delay_ms", "load"), [(SLOW * QUICK_MS - 1, 0), (SLOW * QUICK_MS, 1)])
def test_a_few_milliseconds_make_nobody_slow(time: Time, delay_ms: int, load: int) -> None:
    responders = [answering(time, 1), answering(time, delay_ms)]
    time.ms += 1_000

    assert loads_of_responders([0, 0], responders) == [0, load]


def test_a_newcomer_is_asked_as_the_quickest_is(time: Time) -> None:
    responders = [answering(time, 50), Responder(time)]

    assert loads_of_responders([0, 0], responders) == [0, 0]
