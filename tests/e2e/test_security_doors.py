"""TLS and tokens at the HTTP and the gRPC doors, with HTTP's, gRPC's and Danube's own clients."""

import json
import shutil
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import danube
import grpc
import pytest
from tests.e2e.certificates import Certificates, make_certificates
from tests.e2e.conftest import BrokerProcess
from tests.e2e.grpc.danubes import Danube, new_topic
from tests.e2e.raw import wait_until
from tests.e2e.secured import (
    STRANGER,
    TOKEN,
    connect,
    running,
    tls_flags,
    trusting,
    write_tokens,
)

import ister
from ister import sync
from ister.base.errors import NotConnectedError, UnauthenticatedError
from ister.base.limits import MIB
from ister.server.grpc.messages import message

pytestmark = pytest.mark.e2e

NEXT_TOKEN = "the-next-token-of-billing-77"
WAIT_S = 20.0


@pytest.fixture(scope="module")
def mutual(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[BrokerProcess]:
    """A broker that asks for certificates, and for no token."""
    flags = [*tls_flags(certificates), "--tls-client-ca", str(certificates.ca)]
    with running(tmp_path_factory.mktemp("mutual"), *flags) as broker:
        yield broker


# HTTP

Answer = tuple[int, dict[str, str], str]


def get(
    broker: BrokerProcess, context: ssl.SSLContext, path: str, token: str = "", **options: Any
) -> Answer:
    """Ask, and return status, headers and body, also of what is refused."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"https://{broker.http}{path}"
    request = urllib.request.Request(url, headers=headers, **options)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S, context=context) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read().decode()


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_whether_the_broker_is_well_is_told_without_a_token(
    secured: BrokerProcess, certificates: Certificates, path: str
) -> None:
    assert get(secured, trusting(certificates), path)[0] == 200
    assert get(secured, trusting(certificates), path, STRANGER)[0] == 200


PAGES = ["/metrics", "/api/v1/topics", "/api/openapi.json", "/api/v1/nothing", "/"]
# What a careless comparison would take for an open page.
NEARLY_OPEN = ["//healthz", "/healthz/", "/healthz/../metrics", "/HEALTHZ", "/metrics?/healthz"]


@pytest.mark.parametrize("token", ["", STRANGER, TOKEN[1:]], ids=["none", "unknown", "cut"])
def test_every_other_page_is_refused_without_a_token_that_is_known(
    secured: BrokerProcess, certificates: Certificates, token: str
) -> None:
    for path in (*PAGES, *NEARLY_OPEN):
        status, headers, body = get(secured, trusting(certificates), path, token)

        assert status == 401
        assert headers["www-authenticate"] == "Bearer"
        assert json.loads(body)["error"]["code"] == UnauthenticatedError.code
        assert not token or token not in body


def test_pages_and_the_api_answer_who_has_a_token(
    secured: BrokerProcess, certificates: Certificates
) -> None:
    context = trusting(certificates)
    made, _, _ = get(secured, context, "/api/v1/namespaces/mine", TOKEN, data=b"", method="PUT")

    assert made in {200, 201}
    assert "mine" in get(secured, context, "/api/v1/namespaces", TOKEN)[2]
    assert "ister_uptime_seconds" in get(secured, context, "/metrics", TOKEN)[2]
    document = json.loads(get(secured, context, "/api/openapi.json", TOKEN)[2])
    assert document["components"]["securitySchemes"]


def test_what_would_change_something_changes_nothing_without_a_token(
    secured: BrokerProcess, certificates: Certificates
) -> None:
    context = trusting(certificates)
    status, _, _ = get(secured, context, "/api/v1/namespaces/stolen", method="PUT", data=b"")
    _, _, listed = get(secured, context, "/api/v1/namespaces", TOKEN)

    assert status == 401
    assert "default" in listed
    assert "stolen" not in listed


def test_a_token_that_is_gone_does_not_count_on_a_connection_that_was_open_before(
    tmp_path: Path, certificates: Certificates
) -> None:
    tokens = write_tokens(tmp_path / "tokens", f"billing {TOKEN}")
    flags = [*tls_flags(certificates), "--tokens", str(tokens)]
    with running(tmp_path / "broker", *flags) as broker:
        host, _, port = broker.http.rpartition(":")
        context = trusting(certificates)
        connection = HTTPSConnection(host, int(port), timeout=WAIT_S, context=context)
        opened: object = None

        def status(token: str) -> int:
            assert connection.sock is opened
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            answer.read()
            return answer.status

        connection.connect()
        opened = connection.sock
        assert status(TOKEN) == 200
        write_tokens(tokens, f"billing {NEXT_TOKEN}")
        wait_until(lambda: status(TOKEN) == 401, "the file is read")
        # A stranger's connection is not kept.
        assert connection.sock is None
        connection.connect()
        opened = connection.sock
        assert status(NEXT_TOKEN) == 200
        connection.close()


def test_http_clients_check_the_certificate_and_show_theirs(
    secured: BrokerProcess, mutual: BrokerProcess, certificates: Certificates
) -> None:
    stranger = ssl.create_default_context(cafile=certificates.other_ca)
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        get(secured, stranger, "/healthz")
    with pytest.raises((OSError, ssl.SSLError)):
        get(mutual, trusting(certificates), "/healthz")

    context = trusting(certificates)
    context.load_cert_chain(certificates.other_cert, certificates.other_key)
    with pytest.raises((OSError, ssl.SSLError)):
        get(mutual, context, "/healthz")
    context = trusting(certificates)
    context.load_cert_chain(certificates.client_cert, certificates.client_key)
    assert get(mutual, context, "/metrics")[0] == 200


def test_plain_http_is_not_answered_at_a_door_with_tls(secured: BrokerProcess) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - closed with or without a reset
        urllib.request.urlopen(f"http://{secured.http}/healthz", timeout=WAIT_S)


# gRPC

HEALTH = "/danube.HealthCheck/HealthCheck"
RECEIVE = "/danube.ConsumerService/ReceiveMessages"
BROKERS = "/danube_admin.BrokerAdmin/ListBrokers"


def channel(
    address: str, certificates: Certificates, cert: Path | None = None, key: Path | None = None
) -> grpc.Channel:
    credentials = grpc.ssl_channel_credentials(
        certificates.ca.read_bytes(),
        key.read_bytes() if key else None,
        cert.read_bytes() if cert else None,
    )
    return grpc.secure_channel(address, credentials)


def status_of(method: Any, token: str = "", request: Any = b"") -> grpc.StatusCode:
    """Make a call, and return the status that it ends with."""
    shown = [("authorization", f"Bearer {token}")] if token else []
    try:
        method(request, metadata=shown, timeout=WAIT_S)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        text = str(error)
    else:
        return grpc.StatusCode.OK
    assert TOKEN not in text
    assert STRANGER not in text
    return code


def first_of(method: Any) -> Any:
    """Return a method that waits for the first answer of one with many."""
    return lambda *call, **how: next(method(*call, **how))


@pytest.mark.parametrize("token", ["", STRANGER], ids=["none", "unknown"])
def test_every_method_of_both_grpc_doors_is_refused_without_a_token_that_is_known(
    secured: BrokerProcess, certificates: Certificates, token: str
) -> None:
    refused = grpc.StatusCode.UNAUTHENTICATED
    for address in (secured.grpc, secured.admin):
        with channel(address, certificates) as one:
            for method in (HEALTH, BROKERS, "/danube.Nothing/Nothing"):
                assert status_of(one.unary_unary(method), token) is refused
            assert status_of(first_of(one.unary_stream(RECEIVE)), token) is refused


def test_a_stream_without_a_token_is_refused_before_it_says_anything(
    secured: BrokerProcess, certificates: Certificates
) -> None:
    silence = threading.Event()
    with channel(secured.grpc, certificates) as one:
        said = (b"" for _ in iter(silence.wait, True))
        code = status_of(first_of(one.stream_stream(RECEIVE)), request=said)
        silence.set()

    assert code is grpc.StatusCode.UNAUTHENTICATED


def test_a_large_request_without_a_token_is_refused(
    secured: BrokerProcess, certificates: Certificates
) -> None:
    with channel(secured.grpc, certificates) as one:
        send = one.unary_unary("/danube.ProducerService/SendMessage")
        code = status_of(send, request=bytes(30 * MIB))

    assert code is grpc.StatusCode.UNAUTHENTICATED


def test_grpc_calls_with_a_token_are_answered(
    secured: BrokerProcess, certificates: Certificates
) -> None:
    with channel(secured.admin, certificates) as one:
        bearer = [("authorization", f"Bearer {TOKEN}")]
        answer = one.unary_unary(BROKERS)(b"", metadata=bearer, timeout=WAIT_S)

    [found] = message("danube_admin.BrokerListResponse").FromString(answer).brokers
    assert found.broker_addr == f"https://{secured.grpc}"


@pytest.mark.parametrize("count", [1, 80], ids=["idle", "behind"])
def test_a_stream_of_messages_ends_when_its_token_is_taken_back(
    tmp_path: Path, certificates: Certificates, count: int
) -> None:
    tokens = write_tokens(tmp_path / "tokens", f"billing {TOKEN}")
    flags = [*tls_flags(certificates), "--tokens", str(tokens)]
    bearer = [("authorization", f"Bearer {TOKEN}")]
    with running(tmp_path / "broker", *flags) as broker, channel(broker.grpc, certificates) as one:

        def call(method: str, request: str, **fields: Any) -> bytes:
            data = message(f"danube.{request}")(**fields).SerializeToString()
            answer: bytes = one.unary_unary(f"/danube.{method}")(data, WAIT_S, bearer)
            return answer

        topic = new_topic()
        named = {"topic_name": topic, "producer_name": "p"}
        answer = call("ProducerService/CreateProducer", "ProducerRequest", **named)
        producer_id = message("danube.ProducerResponse").FromString(answer).producer_id
        named = {"topic_name": topic, "consumer_name": "c", "subscription": "s"}
        answer = call("ConsumerService/Subscribe", "ConsumerRequest", **named)
        consumer_id = message("danube.ConsumerResponse").FromString(answer).consumer_id
        request = message("danube.ReceiveRequest")(consumer_id=consumer_id)
        stream = one.unary_stream(RECEIVE)(request.SerializeToString(), WAIT_S, bearer)
        sent = {
            "msg_id": {"producer_id": producer_id, "topic_name": topic},
            "producer_name": "p",
            "payload": bytes(MIB // 8),
        }
        for _ in range(count):
            call("ProducerService/SendMessage", "StreamMessage", **sent)
        next(stream)
        write_tokens(tokens, f"billing {NEXT_TOKEN}")
        wait_until(lambda: "tokens_read" in broker.log_text(), "the file is read")
        with pytest.raises(grpc.RpcError) as caught:
            list(stream)

    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert caught.value.details().endswith("the token was taken back")


def test_a_grpc_client_without_tls_gets_no_connection(secured: BrokerProcess) -> None:
    with grpc.insecure_channel(secured.grpc) as one:
        assert status_of(one.unary_unary(HEALTH), TOKEN) is grpc.StatusCode.UNAVAILABLE


def test_grpc_clients_show_their_certificate(
    mutual: BrokerProcess, certificates: Certificates
) -> None:
    shown = {
        None: grpc.StatusCode.UNAVAILABLE,
        (certificates.other_cert, certificates.other_key): grpc.StatusCode.UNAVAILABLE,
        (certificates.client_cert, certificates.client_key): grpc.StatusCode.OK,
    }
    for pair, expected in shown.items():
        with channel(mutual.admin, certificates, *(pair or ())) as one:
            assert status_of(one.unary_unary(BROKERS)) is expected


def test_all_doors_take_the_one_certificate_that_is_named_instead_of_an_authority(
    tmp_path: Path, certificates: Certificates
) -> None:
    pair = (certificates.client_cert, certificates.client_key)
    flags = [*tls_flags(certificates), "--tls-client-ca", str(certificates.client_cert)]
    with running(tmp_path, *flags) as broker:
        context = trusting(certificates)
        context.load_cert_chain(*pair)
        assert get(broker, context, "/healthz")[0] == 200
        with channel(broker.admin, certificates, *pair) as one:
            assert status_of(one.unary_unary(BROKERS)) is grpc.StatusCode.OK
        tls = ister.Tls(certificates.ca, *pair)
        with sync.connect(broker.url, tls=tls) as client:
            assert client.broker().connections == 1
        # Of the same authority, and not the one that is named.
        tls = ister.Tls(certificates.ca, certificates.cert, certificates.key)
        with pytest.raises(NotConnectedError):
            sync.connect(broker.url, tls=tls, connect_timeout=0)


def test_all_doors_show_a_renewed_certificate_without_a_restart(
    tmp_path: Path, certificates: Certificates
) -> None:
    copy = make_certificates(tmp_path / "copy")
    flags = ["--tls-client-ca", str(copy.ca), *tls_flags(copy)]
    with running(tmp_path / "broker", *flags) as broker:
        doors = [broker.native, broker.http, broker.grpc, broker.admin]
        assert [shown(door, copy) for door in doors] == [der(copy.cert)] * 4
        tls = ister.Tls(copy.ca, copy.client_cert, copy.client_key)
        with sync.connect(broker.url, tls=tls) as client:
            # Another authority as well, of which the clients' certificates are from now on.
            for old, new in (
                (copy.ca, certificates.ca),
                (copy.cert, certificates.cert),
                (copy.key, certificates.key),
            ):
                Path(shutil.copy(new, tmp_path / "part")).replace(old)
            renewed = der(certificates.cert)
            wait_until(lambda: shown(broker.native, certificates) == renewed, "it is shown")

            assert [shown(door, certificates) for door in doors] == [renewed] * 4
            assert [shown(door, copy) for door in doors] == [None] * 4
            assert client.broker().connections == 1
        assert "certificate_read" in broker.log_text()


def shown(address: str, certificates: Certificates) -> bytes | None:
    """Return the certificate of a door that takes the client's, `None` if it does not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(certificates.client_cert, certificates.client_key)
    context.set_alpn_protocols(["h2"])
    # With 1.3 a client would be done before the door has looked at its certificate.
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        suppress(ConnectionError, ssl.SSLError),
        connect(address) as below,
        context.wrap_socket(below) as peer,
    ):
        return peer.getpeercert(binary_form=True)
    return None


def der(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


# Danube's own client


class SecuredDanube(Danube):
    """Danube's client with TLS and a token."""

    def __init__(self, broker: BrokerProcess, certificates: Certificates, token: str) -> None:
        super().__init__(broker.grpc)
        self._ca = str(certificates.ca)
        self._token = token

    async def __aenter__(self) -> "SecuredDanube":
        builder = danube.DanubeClientBuilder().service_url(f"https://{self.address}")
        builder = builder.with_tls(self._ca)
        if self._token:
            builder = builder.with_token(self._token)
        self._client = await builder.build()
        return self


async def test_danube_s_client_publishes_and_receives_with_tls_and_a_token(
    secured: BrokerProcess, certificates: Certificates
) -> None:
    topic = new_topic()
    async with SecuredDanube(secured, certificates, TOKEN) as one:
        producer = await one.producer(topic, reliable=True)
        inbox = await one.consumer(topic)
        for n in range(20):
            await producer.send(b"%d" % n)

        assert await inbox.payloads(20, ack=True) == [b"%d" % n for n in range(20)]


@pytest.mark.parametrize("token", ["", STRANGER], ids=["none", "unknown"])
async def test_danube_s_client_is_refused_without_a_token_that_is_known(
    secured: BrokerProcess, certificates: Certificates, token: str
) -> None:
    async with SecuredDanube(secured, certificates, token) as one:
        with pytest.raises(Exception, match=r"UNAUTHENTICATED|does not know who you are"):
            await one.producer(new_topic())
