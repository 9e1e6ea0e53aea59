"""TLS of the client without a socket: its files, what is wrong in words, and tokens in files."""

import asyncio
import errno
import logging
import shutil
import ssl
from pathlib import Path

import pytest
from tests.e2e.certificates import Certificates, make_certificates

from ister.base.errors import BadRequestError
from ister.base.limits import TOKEN_CHARACTERS_MAX
from ister.client.aio.connection.sockets import (
    TOKEN_FILE_BYTES_MAX,
    HandshakeError,
    TlsConnector,
    closing_hint,
    connect_socket,
    connector_of,
    context_of,
    has_answered,
    tls_reason,
    token_file,
)
from ister.client.session import Tls, access_of

TOKEN = "vX3p9mQm2T7yLw0c"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def refused(tls: Tls) -> str:
    with pytest.raises(BadRequestError) as caught:
        context_of(tls)
    return str(caught.value)


# The files of TLS


def test_only_isters_connects_over_tls() -> None:
    assert isinstance(connector_of(access_of("isters://a")), TlsConnector)
    assert connector_of(access_of("ister://a")) is connect_socket


def test_the_broker_is_always_checked_for_its_name_and_its_signer(
    certificates: Certificates,
) -> None:
    for tls in (Tls(), Tls(ca=certificates.ca)):
        context = context_of(tls)

        assert context.check_hostname
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert not context.hostname_checks_common_name


def test_an_authority_of_ones_own_takes_the_place_of_the_systems(
    certificates: Certificates,
) -> None:
    [found] = context_of(Tls(ca=certificates.ca)).get_ca_certs()

    assert found["subject"] == ((("commonName", "Ister tests"),),)


@pytest.mark.parametrize("name", ["ca", "cert", "key"])
def test_a_file_that_cannot_be_read_is_named(
    certificates: Certificates, tmp_path: Path, name: str
) -> None:
    paths = {"ca": certificates.ca, "cert": certificates.client_cert}
    paths |= {"key": certificates.client_key}

    missing = Tls(**paths | {name: tmp_path / "missing"})
    folder = Tls(**paths | {name: tmp_path})
    assert refused(missing) == f"tls: {tmp_path}/missing: No such file or directory"
    assert refused(folder) == f"tls: {tmp_path}: Is a directory"


@pytest.mark.parametrize("text", ["", "no PEM at all\n", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_an_authority_that_is_none_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ca.pem"
    path.write_text(text)

    assert refused(Tls(ca=path)) == f"tls: {path} has no certificates in PEM"


def test_a_certificate_with_the_key_of_another_is_told(certificates: Certificates) -> None:
    cert, key = certificates.client_cert, certificates.other_key

    said = refused(Tls(cert=cert, key=key))
    assert said.startswith(f"tls: {cert} and {key} are no certificate and its key in PEM")


def test_a_key_with_a_password_is_told_and_nobody_is_asked_for_it(
    certificates: Certificates, capfd: pytest.CaptureFixture[str]
) -> None:
    said = refused(Tls(cert=certificates.cert, key=certificates.encrypted_key))

    assert "a key has no password here" in said
    assert capfd.readouterr() == ("", "")


def test_no_error_shows_anything_of_a_key(certificates: Certificates, tmp_path: Path) -> None:
    key = tmp_path / "client.key"
    lines = certificates.client_key.read_text().splitlines()
    key.write_text("\n".join(lines[:-1]))

    said = refused(Tls(cert=certificates.client_cert, key=key))
    assert not any(line in said for line in lines[1:-1])


# Renewed files


def copied(certificates: Certificates, folder: Path) -> Tls:
    pairs = {"ca": certificates.ca, "cert": certificates.client_cert}
    pairs |= {"key": certificates.client_key}
    return Tls(**{name: shutil.copy(path, folder / name) for name, path in pairs.items()})


def test_files_are_read_once_and_again_when_they_were_renewed(
    certificates: Certificates, tmp_path: Path
) -> None:
    connector = TlsConnector(copied(certificates, tmp_path))
    first = connector._load()
    assert connector._load() is first

    shutil.copy(certificates.other_ca, tmp_path / "ca")

    [found] = connector._load().get_ca_certs()
    assert found["subject"] == ((("commonName", "Nobody's"),),)


def test_files_renewed_by_halves_leave_those_of_before_until_all_are_there(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connector = TlsConnector(copied(certificates, tmp_path))
    first = connector._load()

    with caplog.at_level(logging.WARNING, logger="ister.client"):
        shutil.copy(certificates.other_cert, tmp_path / "cert")
        assert connector._load() is first
        assert connector._load() is first
    shutil.copy(certificates.other_key, tmp_path / "key")

    # Told once.
    [record] = caplog.records
    assert record.message.startswith("tls_files_not_renewed")
    assert connector._load() is not first


def test_files_that_were_removed_leave_those_of_before(
    certificates: Certificates, tmp_path: Path
) -> None:
    connector = TlsConnector(copied(certificates, tmp_path))
    first = connector._load()
    (tmp_path / "ca").unlink()

    assert connector._load() is first


def test_files_that_were_never_good_are_an_error_each_time(tmp_path: Path) -> None:
    connector = TlsConnector(Tls(ca=tmp_path / "ca"))

    for _ in range(2):
        with pytest.raises(BadRequestError, match="No such file"):
            connector._load()


# What is wrong, in words


class Pair:
    """Two ends of TLS, joined by nothing but bytes."""

    def __init__(self, client: Tls, server: ssl.SSLContext, host: str = "localhost") -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._client = context_of(client).wrap_bio(self._in, self._out, server_hostname=host)
        self._server = server.wrap_bio(self._out, self._in, server_side=True)

    def error(self) -> ssl.SSLError:
        """Shake hands, and return what the client finds wrong."""
        for _ in range(4):
            for step in (self._client.do_handshake, self._server.do_handshake):
                try:
                    step()
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLError as error:
                    if step == self._client.do_handshake:
                        return error
        with pytest.raises(ssl.SSLError) as caught:
            self._client.read(1)
        return caught.value

    def hear(self, data: bytes) -> ssl.SSLError:
        """Return what the client makes of an answer."""
        with pytest.raises(ssl.SSLWantReadError):
            self._client.do_handshake()
        self._in.write(data)
        with pytest.raises(ssl.SSLError) as caught:
            self._client.do_handshake()
        return caught.value


def server(certificates: Certificates, *, asks: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert, certificates.key)
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates.ca)
    return context


def test_a_broker_signed_by_a_stranger_is_told_with_the_way_out(
    certificates: Certificates,
) -> None:
    error = Pair(Tls(ca=certificates.other_ca), server(certificates)).error()

    said = tls_reason(error)
    assert said.startswith("its certificate is not to be trusted: ")
    assert said.endswith("with `ca` of `ister.Tls`, or --tls-ca (ISTER_TLS_CA)")


def test_a_broker_of_another_name_is_told_without_talk_of_authorities(
    certificates: Certificates,
) -> None:
    error = Pair(Tls(ca=certificates.ca), server(certificates), "elsewhere").error()

    said = tls_reason(error)
    assert said == (
        "its certificate is not to be trusted: Hostname mismatch, certificate is not valid for "
        "'elsewhere'"
    )


def test_a_client_without_the_certificate_that_is_asked_for_is_told(
    certificates: Certificates,
) -> None:
    error = Pair(Tls(ca=certificates.ca), server(certificates, asks=True)).error()

    assert tls_reason(error).endswith("`cert` and `key` of `ister.Tls`, or --tls-cert")


def test_a_client_whose_certificate_is_a_strangers_is_told(certificates: Certificates) -> None:
    tls = Tls(certificates.ca, certificates.other_cert, certificates.other_key)
    error = Pair(tls, server(certificates, asks=True)).error()

    said = tls_reason(error)
    assert said == (
        "TLS: tlsv1 alert unknown ca; it does not know who signed your certificate: "
        "see --tls-client-ca there"
    )


def test_a_broker_without_tls_is_told_with_the_way_out() -> None:
    error = Pair(Tls(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)).hear(b"HTTP/1.1 400 Bad\r\n\r\n")

    assert tls_reason(error) == "it does not speak TLS: write ister://, or turn TLS on there"


def test_an_error_without_a_reason_is_told_in_words() -> None:
    assert tls_reason(ssl.SSLError(1, "")) == "TLS: broken"


def test_a_connection_that_ends_without_a_word_has_a_hint() -> None:
    assert "write isters://" in closing_hint(None)
    assert "--tls-cert" in closing_hint(Tls(ca="ca"))
    assert "--tls-client-ca there" in closing_hint(Tls(cert="cert", key="key"))


@pytest.mark.parametrize(
    "error", [ConnectionResetError(), ConnectionResetError(errno.ECONNRESET, "reset")]
)
async def test_the_end_of_a_handshake_is_told_as_one(
    monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    with pytest.raises(HandshakeError, match="closed instead of a TLS handshake: is TLS on") as got:
        await failing_with(error, monkeypatch)
    assert has_answered(got.value)


async def test_a_refused_connection_is_told_as_the_system_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConnectionRefusedError, match="nobody") as caught:
        await failing_with(ConnectionRefusedError(errno.ECONNREFUSED, "nobody"), monkeypatch)
    assert not has_answered(caught.value)


async def test_a_certificate_that_is_not_trusted_is_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(HandshakeError) as caught:
        await failing_with(ssl.SSLError("untrusted"), monkeypatch)
    assert has_answered(caught.value)


async def failing_with(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect in an event loop whose connections fail."""

    async def create_connection(*_: object, **__: object) -> None:
        raise error

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "create_connection", create_connection)
    await TlsConnector(Tls())(asyncio.Protocol, ("localhost", 1))


# Tokens in files


def token_refused(path: Path) -> str:
    with pytest.raises(BadRequestError) as caught:
        token_file(str(path))()
    return str(caught.value)


@pytest.mark.parametrize("text", [TOKEN, f"{TOKEN}\n", f" {TOKEN}\r\n\n"])
def test_a_token_is_read_from_a_file_without_what_is_around_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)

    assert token_file(str(path))() == TOKEN


def test_a_file_is_read_whenever_the_token_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = token_file(str(path))
    path.write_text("first")
    assert token() == "first"

    path.write_text("second")
    assert token() == "second"


def test_a_file_without_a_token_is_told(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert token_refused(path) == f"token file {path}: No such file or directory"
    assert token_refused(tmp_path) == f"token file {tmp_path}: Is a directory"
    path.write_text(" \n")
    assert token_refused(path) == f"token file {path}: is empty: write the token into it"


@pytest.mark.parametrize(
    "data",
    [
        f"{TOKEN} {TOKEN}".encode(),
        f"{TOKEN}\nmore".encode(),
        TOKEN.encode() + b"\xff",
        TOKEN.encode() + b"\x00",
        TOKEN.encode() * (TOKEN_CHARACTERS_MAX // len(TOKEN)) + b"x",
        TOKEN.encode() + b" " * TOKEN_FILE_BYTES_MAX + b"more",
    ],
    ids=["words", "lines", "bytes", "unprintable", "long", "large"],
)
def test_a_file_with_more_than_a_token_is_told_and_not_shown(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(data)

    said = token_refused(path)
    assert said.startswith(f"token file {path}: is to have one token")
    assert TOKEN not in said
