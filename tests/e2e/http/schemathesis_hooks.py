"""What Schemathesis is told about this API. It loads this module by itself.

It knows the shapes of requests, but not which names exist: half of the requests that follow their
shape are sent to names that the test has made. And it takes every 400 for a complaint about the
shape: those about what a request means, given what is there, are no failures.
"""

import json
import random
from typing import Any
from urllib.parse import quote, unquote

import schemathesis

KNOWN = {
    "namespace": ["default"],
    "topic": ["orders", "prices", "parts", "parts-part-1"],
    "subscription": ["billing"],
    "cursor": ["start"],
    "subject": ["order", "price"],
    "version": ["1", "2"],
    "schema_id": ["1", "2"],
}

# Of errors that a request of a good shape may get for what it means: a definition that is broken,
# a message that breaks its schema, a stream that is a live topic.
MEANINGS = {1013, 1014, 1015}
# No shape says that a topic is not called as a partition is, nor how many bytes text takes.
UNSAID = ("'-part-N'", "bytes")
# A request that is wrong for a reason that no shape can say has no place of a mistake in its text.
SHAPES = ("body:", "query:", "path:")

# Requests with a topic from an earlier answer. With letters beyond ASCII it is written as paths
# have it, in which no shape knows it again.
MENDED: set[str] = set()

chance = random.Random(1)


@schemathesis.hook
def map_case(context: Any, case: Any) -> Any:
    """Send a request to names that are there, unless its names come from an earlier answer."""
    meta = case.meta
    if meta is None or meta.generation.mode.is_negative or meta.phase.name == "stateful":
        return case
    # What is there is not to be removed at once.
    if case.method != "DELETE" and chance.random() < 0.5:
        for name in case.path_parameters or ():
            case.path_parameters[name] = chance.choice(KNOWN[name])
    return case


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Send a topic from an earlier answer, which tells it with its namespace, as paths have it."""
    if case.meta is None or case.meta.generation.mode.is_negative:
        return
    whole = unquote(str((case.path_parameters or {}).get("topic", "")))
    if whole.startswith("/"):
        _, namespace, topic = whole.split("/", 2)
        MENDED.add(case.id)
        case.path_parameters |= {"namespace": quote(namespace), "topic": quote(topic)}


@schemathesis.hook
def filter_failure(context: Any, failure: Any, case: Any, response: Any) -> bool:
    """Return whether a failure is one."""
    if case.id in MENDED and "AcceptedNegativeData" in type(failure).__name__:
        return False
    if response.status_code != 400 or "RejectedPositiveData" not in type(failure).__name__:
        return True
    error = json.loads(response.content)["error"]
    if error["code"] in MEANINGS or any(word in error["message"] for word in UNSAID):
        return False
    return bool(error["code"] != 1007 or error["message"].startswith(SHAPES))
