"""TLS and tokens at the native door: who comes in, by Python's clients and the command line."""

import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.certificates import Certificates
from tests.e2e.conftest import BrokerProcess, plain_environment
from tests.e2e.raw import RawClient, wait_until
from tests.e2e.secured import (
    STRANGER,
    TOKEN,
    native,
    running,
    tls_flags,
    write_tokens,
)
from tests.e2e.shell import Shell

import ister
from ister import sync
from ister.base.errors import (
    DeniedError,
    InvalidError,
    IsterError,
    NotConnectedError,
    UnauthenticatedError,
    UntrustedBrokerError,
)
from ister.wire import (
    ErrorReply,
    Hello,
    ListTopics,
    control_frame,
    error_of,
)

pytestmark = pytest.mark.e2e

NEXT_TOKEN = "the-next-token-of-billing-77"
THIRD_TOKEN = "the-only-token-of-reports-88"
WAIT_S = 20.0


@pytest.fixture(scope="module")
def mutual(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[BrokerProcess]:
    """A broker that asks for certificates; its own is for 127.0.0.1, and not for localhost."""
    flags = ["--tls-cert", str(certificates.client_cert), "--tls-key", str(certificates.client_key)]
    flags += ["--tls-client-ca", str(certificates.ca)]
    with running(tmp_path_factory.mktemp("mutual"), *flags) as broker:
        yield broker


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker without TLS, for this machine alone, that asks for a token."""
    folder = tmp_path_factory.mktemp("plain")
    tokens = write_tokens(folder / "tokens", f"billing {TOKEN}")
    with running(folder, "--tokens", str(tokens)) as broker:
        yield broker


def refusal(url: str, **access: object) -> str:
    """Return why there is no connection."""
    with pytest.raises(IsterError) as caught:
        sync.connect(url, timeout=WAIT_S, connect_timeout=0, **access)  # type: ignore[arg-type]
    assert isinstance(caught.value, NotConnectedError | UntrustedBrokerError)
    return caught.value.reason


# Tokens


async def test_a_client_with_a_token_publishes_and_receives_over_tls(
    secured: BrokerProcess, certificates: Certificates
) -> None:
    assert secured.url.startswith("isters://")
    tls = ister.Tls(ca=certificates.ca)
    async with (
        ister.connect(secured.url, token=TOKEN, tls=tls) as client,
        client.subscribe("/default/aio", "s") as sub,
        client.producer("/default/aio") as producer,
    ):
        await producer.send(b"hello", key="k")
        message = await sub.receive(timeout=WAIT_S)

    assert (message.payload, message.key) == (b"hello", "k")


def test_a_blocking_client_asks_a_function_for_its_token(
    secured: BrokerProcess, certificates: Certificates
) -> None:
    tls = ister.Tls(ca=certificates.ca)
    with sync.connect(secured.url, token=lambda: TOKEN, tls=tls) as client:
        assert client.broker().connections >= 1


def test_a_token_is_asked_for_without_tls_too(plain: BrokerProcess) -> None:
    with sync.connect(plain.url, token=TOKEN) as client:
        assert client.broker().connections == 1
    with pytest.raises(UnauthenticatedError):
        sync.connect(plain.url)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("", "no token was given: this broker asks for one"),
        (STRANGER, "unknown token"),
        (TOKEN[:-1], "unknown token"),
        (TOKEN.upper(), "unknown token"),
    ],
    ids=["none", "unknown", "cut short", "in capitals"],
)
def test_who_shows_no_token_or_another_one_is_told_so_and_nothing_else(
    secured: BrokerProcess, certificates: Certificates, token: str, reason: str
) -> None:
    with pytest.raises(UnauthenticatedError) as caught:
        native(secured, certificates, token)

    assert caught.value.reason == reason
    assert isinstance(caught.value, DeniedError)
    assert not token or token not in str(caught.value)


def test_nothing_that_follows_a_refused_hello_is_acted_on(plain: BrokerProcess) -> None:
    for token in ("", STRANGER):
        with RawClient(plain) as raw:
            # In one piece, so that the broker reads all of it at once.
            raw.send(
                control_frame(Hello(client_id="raw", token=token)),
                control_frame(Hello(client_id="raw", token=TOKEN)),
                control_frame(ListTopics(), sequence=1),
            )
            assert isinstance(error_of(raw.expect(ErrorReply)), UnauthenticatedError)
            assert raw.frame() is None


@pytest.mark.parametrize("token", ["x" * 3_000, "\u00e9" * 600, "\x00"], ids=["long", "é", "0"])
def test_a_hello_with_a_token_that_cannot_be_is_refused(plain: BrokerProcess, token: str) -> None:
    with RawClient(plain) as raw:
        raw.send(control_frame(Hello(client_id="raw", token=token)))
        assert isinstance(raw.farewell(), UnauthenticatedError)


def test_a_changed_file_of_tokens_counts_for_new_connections_and_for_open_ones(
    tmp_path: Path, certificates: Certificates
) -> None:
    tokens = write_tokens(tmp_path / "tokens", f"billing {TOKEN}", f"reports {THIRD_TOKEN}")
    flags = [*tls_flags(certificates), "--tokens", str(tokens), "--no-grpc"]
    with running(tmp_path / "broker", *flags) as broker:
        with (
            native(broker, certificates) as old,
            native(broker, certificates, THIRD_TOKEN) as other,
            old.subscribe("/default/x", "s") as sub,
        ):
            write_tokens(tokens, f"billing {NEXT_TOKEN}", f"reports {THIRD_TOKEN}")
            # Without anybody who comes: the broker looks by itself.
            with pytest.raises(UnauthenticatedError):
                sub.receive(timeout=WAIT_S)
            assert not comes_in(broker, certificates, TOKEN)
            assert comes_in(broker, certificates, NEXT_TOKEN)
            assert other.broker().connections >= 1

            write_tokens(tokens, "no such line")
            wait_until(lambda: "tokens_not_read" in broker.log_text(), "the mistake is told")
            assert comes_in(broker, certificates, NEXT_TOKEN)
            assert other.broker().connections >= 1
        assert broker.log_text().count('"client_token_gone"') == 1
        assert NEXT_TOKEN not in broker.log_text()


def comes_in(broker: BrokerProcess, certificates: Certificates, token: str) -> bool:
    try:
        native(broker, certificates, token).close()
    except UnauthenticatedError:
        return False
    return True


def test_a_client_whose_token_is_gone_when_it_reconnects_is_told(tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path / "tokens", f"billing {TOKEN}")
    with (
        running(tmp_path / "broker", "--tokens", str(tokens), "--no-grpc") as broker,
        sync.connect(broker.url, token=TOKEN) as client,
    ):
        write_tokens(tokens, f"billing {NEXT_TOKEN}")
        broker.restart()

        with pytest.raises(UnauthenticatedError):
            client.broker()


def test_a_client_with_a_function_comes_back_when_that_has_the_new_token(tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path / "tokens", f"billing {TOKEN}")
    known = TOKEN
    with (
        running(tmp_path / "broker", "--tokens", str(tokens), "--no-grpc") as broker,
        sync.connect(broker.url, token=lambda: known) as client,
    ):
        write_tokens(tokens, f"billing {NEXT_TOKEN}")
        broker.restart()
        wait_until(lambda: "client_refused" in broker.log_text(), "the old token is refused")
        known = NEXT_TOKEN

        assert client.broker().connections == 1


# Certificates


def test_a_broker_whose_certificate_nobody_trusted_has_signed_is_not_talked_to(
    secured: BrokerProcess, certificates: Certificates
) -> None:
    for tls in (None, ister.Tls(ca=certificates.other_ca)):
        reason = refusal(secured.url, token=TOKEN, tls=tls)

        assert reason.startswith("its certificate is not to be trusted: ")
        assert reason.endswith("with `ca` of `ister.Tls`, or --tls-ca (ISTER_TLS_CA)")


def test_a_broker_with_the_certificate_of_another_host_is_not_talked_to(
    mutual: BrokerProcess, certificates: Certificates
) -> None:
    tls = ister.Tls(certificates.ca, certificates.client_cert, certificates.client_key)
    url = mutual.url.replace("127.0.0.1", "localhost")

    assert "certificate is not valid for 'localhost'" in refusal(url, tls=tls)
    with sync.connect(mutual.url, tls=tls) as client:
        assert client.broker().connections == 1


def test_a_client_without_the_certificate_that_is_asked_for_is_told_so(
    mutual: BrokerProcess, certificates: Certificates
) -> None:
    missing = refusal(mutual.url, tls=ister.Tls(certificates.ca))
    foreign = ister.Tls(certificates.ca, certificates.other_cert, certificates.other_key)

    assert "it may want a certificate: `cert` and `key` of `ister.Tls`" in missing
    assert "it may not know who signed your certificate" in refusal(mutual.url, tls=foreign)


def test_a_client_without_tls_is_told_to_use_it(secured: BrokerProcess) -> None:
    reason = refusal(secured.url.replace("isters://", "ister://"), token=TOKEN)

    assert reason.endswith("if TLS is on there, write isters://")


def test_a_client_with_tls_is_told_that_there_is_none(
    plain: BrokerProcess, certificates: Certificates
) -> None:
    url = plain.url.replace("ister://", "isters://")
    reason = refusal(url, token=TOKEN, tls=ister.Tls(certificates.ca))

    assert reason == "it does not speak TLS: write ister://, or turn TLS on there"


def test_both_versions_of_tls_that_are_safe_are_spoken(
    secured: BrokerProcess, certificates: Certificates
) -> None:
    context = ssl.create_default_context(cafile=certificates.ca)
    versions = set()
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context.minimum_version = context.maximum_version = version
        with RawClient(secured) as raw:
            raw.socket = context.wrap_socket(raw.socket, server_hostname="localhost")
            versions.add(raw.socket.version())
            raw.send(control_frame(Hello(client_id="raw", token=TOKEN)))
            assert raw.frame() is not None
    assert versions == {"TLSv1.2", "TLSv1.3"}


# The command line


@pytest.fixture
def shell(secured: BrokerProcess, certificates: Certificates) -> Iterator[Shell]:
    one = Shell(secured.url, ISTER_TLS_CA=str(certificates.ca))
    yield one
    one.close()


def test_commands_take_a_token_from_a_file_or_a_variable(
    shell: Shell, secured: BrokerProcess, certificates: Certificates, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    shell.run("topics", "create", "/default/cli", "--kind", "stream", "--token-file", str(file))
    shell.environment["ISTER_TOKEN"] = TOKEN
    shell.run("produce", "/default/cli", input=b"one\ntwo\n")
    del shell.environment["ISTER_TLS_CA"]
    read = shell.run("read", "/default/cli", "--tls-ca", str(certificates.ca))

    assert read.stdout == b"one\ntwo\n"


def test_a_command_without_a_token_or_with_another_one_ends_with_the_code_for_rights(
    shell: Shell, tmp_path: Path
) -> None:
    none = shell.run("topics", "list", code=DeniedError.exit_code)
    shell.environment["ISTER_TOKEN"] = STRANGER
    unknown = shell.run("topics", "list", code=DeniedError.exit_code)

    assert b"no token was given" in none.stderr
    assert b"unknown token" in unknown.stderr
    assert STRANGER.encode() not in unknown.stdout + unknown.stderr


def test_no_option_takes_a_token_that_others_would_see_among_the_processes(shell: Shell) -> None:
    shell.run("topics", "list", "--token", TOKEN, code=2)


def test_a_waiting_command_shows_its_token_to_nobody(
    shell: Shell, secured: BrokerProcess, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    shell.run("topics", "create", "/default/shown", "--token-file", str(file))
    process = shell.start("consume", "/default/shown", "--token-file", str(file))
    shown = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, check=True).stdout

    assert process.poll() is None
    assert TOKEN.encode() not in shown


# Start-up


def refused_start(folder: Path, *flags: str) -> str:
    """Return what a broker says that does not start."""
    data = ["--data", str(folder / "data"), "--port", "0", "--http-port", "0", "--no-grpc"]
    ended = subprocess.run(
        [sys.executable, "-m", "ister", "serve", *data, *flags],
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert ended.returncode == InvalidError.exit_code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert TOKEN not in ended.stdout + ended.stderr
    assert not list(folder.glob("data/*"))
    return ended.stderr


def test_a_broker_does_not_start_with_half_of_a_certificate(
    certificates: Certificates, tmp_path: Path
) -> None:
    told = refused_start(tmp_path, "--tls-cert", str(certificates.cert))

    assert "--tls-cert is given without --tls-key: TLS needs both" in told


def test_a_broker_tells_all_that_is_wrong_with_its_files_and_waits_for_no_pipe(
    certificates: Certificates, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    tokens = write_tokens(tmp_path / "tokens", f"billing {TOKEN}", f"more {TOKEN} words")
    flags = ["--tls-cert", str(certificates.cert), "--tls-key", str(pipe), "--tokens", str(tokens)]
    told = refused_start(tmp_path, *flags)

    assert f"--tls-key {pipe}: is no regular file" in told
    assert f"--tokens {tokens} line 2: is not `NAME TOKEN`" in told
    assert f"--tokens {pipe}: is no regular file" in refused_start(tmp_path, "--tokens", str(pipe))


def test_a_broker_does_not_start_with_tokens_that_others_could_read(tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path / "tokens", f"billing {TOKEN}")
    told = refused_start(tmp_path, "--tokens", str(tokens), "--host", "0.0.0.0")
    assert "--tokens without TLS on --host 0.0.0.0: anybody on the way could read them" in told

    tokens.chmod(0o644)
    told = refused_start(tmp_path, "--tokens", str(tokens))
    assert f"run `chmod 600 {tokens}`" in told
