"""Whatever comes, the API answers: with a success, or with an error that is not ours."""

from urllib.parse import quote

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.server.http.caller import Caller

from ister.metadata import MemoryMetadata
from ister.registry import Registry
from ister.server.http import App
from ister.server.http.api import ROUTES
from ister.server.http.routes import PREFIX
from ister.server.native import NativeDoor
from ister.server.operations import Dispatcher
from ister.testing import MemoryBroker

METHODS = st.sampled_from(["GET", "PUT", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS", "BREW", ""])
NAMES = st.one_of(
    st.sampled_from(["default", "orders", "orders-part-0", ">", "*", "billing", "1", "latest"]),
    st.text(max_size=300),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda some: st.lists(some) | st.dictionaries(st.text(), some),
    max_leaves=10,
)
FIELDS = st.sampled_from(
    ["kind", "partitions", "payload", "encoding", "to", "type", "settings", "definition", "subject"]
)
WORDS = st.sampled_from(["stream", "live", "base64", "avro", {"origin": "earliest"}, -1, 2**70])


@st.composite
def paths(draw: st.DrawFn) -> str:
    """A path of the table with any names, or any path."""
    path = draw(st.sampled_from([route.operation.spec.path for route in ROUTES.table]))
    segments = [
        quote(draw(NAMES), safe="") if part.startswith("{") else part for part in path.split("/")
    ]
    return PREFIX + "/".join(segments) + draw(st.sampled_from(["", "", "", "/", "/x"]))


BODIES = st.one_of(
    st.binary(max_size=200),
    st.dictionaries(FIELDS, WORDS | JSON, max_size=4),
)


@settings(max_examples=150, deadline=None)
@given(
    requests=st.lists(
        st.tuples(METHODS, paths(), st.text(max_size=20), BODIES), min_size=1, max_size=5
    )
)
async def test_no_request_breaks_the_api(
    requests: list[tuple[str, str, str, bytes | dict[str, object]]],
) -> None:
    async with MemoryBroker() as broker:
        engine = broker.engine
        registry = await Registry.open(MemoryMetadata(), now_ms=broker.clock.now_ms)
        call = Caller(App(engine, NativeDoor(engine), Dispatcher(engine, registry)))
        await call("PUT", f"{PREFIX}/namespaces/default/topics/orders", {"kind": "stream"})
        for method, path, query, body in requests:
            target = f"{path}?{quote(query, safe='=&')}"
            json = {"content-type": "application/json"}
            if isinstance(body, bytes):
                answer = await call(method, target, raw=body, headers=json)
            else:
                answer = await call(method, target, body)

            assert answer.status < 500, answer
            if answer.status >= 400 and method != "HEAD":
                assert answer.error[1] >= 1000
