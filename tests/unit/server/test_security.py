"""The authenticator of all doors: who is let in, files that change, certificates."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.e2e.certificates import Certificates, make_certificates

from ister.base.errors import ConfigError, UnauthenticatedError
from ister.config import SecurityConfig, ServerConfig, read_config
from ister.server.security import (
    LOOK_MS,
    Authenticator,
    Pass,
    bearer,
    open_authenticator,
)
from ister.server.tokens import Tokens, load_tokens
from ister.telemetry.occasions import TELL_MS

TOKEN = "vX3p9mQm2T7yLw0c"
OTHER = "0123456789abcdef-0123456789abcdef"


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"billing {TOKEN}\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


# Tokens


def test_an_authenticator_without_tokens_lets_everybody_in() -> None:
    authenticator = Authenticator()

    assert not authenticator.asks
    assert authenticator.check("") == authenticator.check("anything") == Pass()
    assert authenticator.admits(Pass())


def test_an_authenticator_with_tokens_names_who_has_one_and_refuses_all_others(file: Path) -> None:
    authenticator = Authenticator(tokens=file)

    assert authenticator.asks
    assert authenticator.check(TOKEN).name == "billing"
    for token in (OTHER, TOKEN[:-1], TOKEN + " ", "\ud800", "x" * 100_000):
        with pytest.raises(UnauthenticatedError, match="unknown token"):
            authenticator.check(token)
    with pytest.raises(UnauthenticatedError, match="no token was given"):
        authenticator.check("")


def test_refusals_are_logged_at_most_once_a_second_and_without_the_token(file: Path) -> None:
    clock = Hand()
    authenticator = Authenticator(tokens=file, now_ms=clock)
    with capture_logs() as lines:
        for _ in range(50):
            with pytest.raises(UnauthenticatedError):
                authenticator.check(OTHER, door="native", address="10.0.0.9:1")
        clock.now_ms = TELL_MS
        with pytest.raises(UnauthenticatedError):
            authenticator.check(OTHER)

    assert [line["times"] for line in lines] == [1, 50]
    assert (lines[0]["door"], lines[0]["address"]) == ("native", "10.0.0.9:1")
    assert OTHER not in str(lines)


def test_a_changed_file_counts_from_the_next_look_on(file: Path) -> None:
    clock = Hand()
    authenticator = Authenticator(tokens=file, now_ms=clock)
    file.write_text(f"reports {OTHER}\n")

    clock.now_ms = LOOK_MS - 1
    assert authenticator.check(TOKEN).name == "billing"
    clock.now_ms = LOOK_MS
    assert authenticator.check(OTHER).name == "reports"
    with pytest.raises(UnauthenticatedError):
        authenticator.check(TOKEN)


def test_who_was_let_in_may_stay_until_a_look_finds_their_token_gone(file: Path) -> None:
    clock = Hand()
    authenticator = Authenticator(tokens=file, now_ms=clock)
    shown = authenticator.check(TOKEN)
    # The same name with another token: the former one is what was taken back.
    file.write_text(f"billing {OTHER}\n")

    clock.now_ms = LOOK_MS - 1
    authenticator.look()
    assert authenticator.admits(shown)
    clock.now_ms = LOOK_MS
    authenticator.look()
    assert not authenticator.admits(shown)
    assert authenticator.admits(authenticator.check(OTHER))


@pytest.mark.parametrize("change", ["missing", "mistake", "readable"])
def test_a_file_changed_for_the_worse_is_told_once_and_the_former_tokens_stay(
    file: Path, change: str
) -> None:
    clock = Hand()
    authenticator = Authenticator(tokens=file, now_ms=clock)
    match change:
        case "missing":
            file.unlink()
        case "mistake":
            file.write_text(f"billing {OTHER} more\n")
        case _:
            file.chmod(0o644)

    with capture_logs() as lines:
        for clock.now_ms in range(LOOK_MS, 5 * LOOK_MS, LOOK_MS):
            assert authenticator.check(TOKEN).name == "billing"

    [line] = lines
    assert line["event"] == "tokens_not_read"
    assert OTHER not in str(line)


@pytest.mark.parametrize("text", ["", "\n", f"# billing {TOKEN}\n"])
def test_a_file_left_without_tokens_lets_nobody_in_once_it_has_been_so_for_a_look(
    file: Path, text: str
) -> None:
    clock = Hand()
    authenticator = Authenticator(tokens=file, now_ms=clock)
    file.write_text(text)

    with capture_logs() as lines:
        clock.now_ms = LOOK_MS
        assert authenticator.check(TOKEN).name == "billing"
        clock.now_ms = 2 * LOOK_MS
        with pytest.raises(UnauthenticatedError):
            authenticator.check(TOKEN)
    assert (lines[0]["event"], lines[0]["tokens"]) == ("tokens_read", 0)

    file.write_text(f"billing {TOKEN}\n")
    clock.now_ms = 3 * LOOK_MS
    assert authenticator.check(TOKEN).name == "billing"


def test_a_file_without_tokens_that_changes_between_looks_still_lets_nobody_in(file: Path) -> None:
    clock = Hand()
    authenticator = Authenticator(tokens=file, now_ms=clock)
    for text in ("", "# nobody\n"):
        file.write_text(text)
        clock.now_ms += LOOK_MS
        authenticator.look()

    with pytest.raises(UnauthenticatedError):
        authenticator.check(TOKEN)


def test_a_file_that_is_empty_while_it_is_written_costs_nobody_their_way_in(file: Path) -> None:
    clock = Hand()
    authenticator = Authenticator(tokens=file, now_ms=clock)
    for _ in range(5):
        file.write_text("")
        clock.now_ms += LOOK_MS
        assert authenticator.check(TOKEN).name == "billing"
        file.write_text(f"billing {TOKEN}\n")
        clock.now_ms += LOOK_MS
        assert authenticator.check(TOKEN).name == "billing"


def test_a_file_without_tokens_is_refused_at_start(file: Path) -> None:
    for text in ("", "# nobody\n"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="has no tokens, so nobody could come in"):
            Authenticator(tokens=file)


def test_a_file_that_was_mended_is_read(file: Path) -> None:
    clock = Hand()
    authenticator = Authenticator(tokens=file, now_ms=clock)
    file.write_text("nothing\n")
    clock.now_ms = LOOK_MS
    authenticator.check(TOKEN)

    file.write_text(f"reports {OTHER}\n")
    clock.now_ms = 2 * LOOK_MS

    assert authenticator.check(OTHER).name == "reports"


def test_a_file_that_could_not_be_read_for_a_moment_is_read_at_the_next_look(file: Path) -> None:
    clock = Hand()
    authenticator = Authenticator(tokens=file, now_ms=clock)
    file.write_text(f"reports {OTHER}\n")
    with out_of_files(), capture_logs() as lines:
        clock.now_ms = LOOK_MS
        authenticator.check(TOKEN)

    clock.now_ms = 2 * LOOK_MS

    with pytest.raises(UnauthenticatedError):
        authenticator.check(TOKEN)
    assert authenticator.check(OTHER).name == "reports"
    assert "Too many open files" in str(lines)


def test_a_file_with_mistakes_is_read_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, reads = Hand(), []
    authenticator = Authenticator(tokens=file, now_ms=clock)

    def load(path: Path) -> Tokens:
        reads.append(path)
        return load_tokens(path)

    monkeypatch.setattr("ister.server.security.load_tokens", load)
    file.write_text("one\n")
    for _ in range(5):
        clock.now_ms += LOOK_MS
        authenticator.look()

    assert reads == [file]


def test_another_mistake_is_told_and_the_same_one_again_after_a_good_file(file: Path) -> None:
    clock = Hand()
    authenticator = Authenticator(tokens=file, now_ms=clock)
    with capture_logs() as lines:
        for text in ("one\n", "one \n", "\none\n", f"billing {TOKEN}\n", "one\n"):
            file.write_text(text)
            clock.now_ms += LOOK_MS
            authenticator.check(TOKEN)
            clock.now_ms += LOOK_MS
            authenticator.check(TOKEN)

    told = [(line["event"], line.get("mistakes")) for line in lines]
    mistake = "is not `NAME TOKEN`: write two words"
    assert told == [
        ("tokens_not_read", [f"{file} line 1: {mistake}"]),
        ("tokens_not_read", [f"{file} line 2: {mistake}"]),
        ("tokens_read", None),
        ("tokens_not_read", [f"{file} line 1: {mistake}"]),
    ]


@contextmanager
def out_of_files() -> Iterator[None]:
    """Let this process open no more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The next one is the first that is free, so that none above it counts.
    with Path("/dev/null").open() as free:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free.fileno(), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (f"Bearer {TOKEN}", TOKEN),
        (f"bearer   {TOKEN} ", TOKEN),
        (f"BEARER {TOKEN}", TOKEN),
        (TOKEN, ""),
        ("Bearer", ""),
        (f"Basic {TOKEN}", ""),
        (f"Bearer{TOKEN}", ""),
        ("", ""),
    ],
)
def test_the_token_of_a_header(header: str, token: str) -> None:
    assert bearer(header) == token


# Certificates


def refused(config: SecurityConfig) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        open_authenticator(config, lambda: 0)
    return caught.value.mistakes


def test_a_certificate_with_its_key_is_taken(certificates: Certificates) -> None:
    config = SecurityConfig(tls_cert=certificates.cert, tls_key=certificates.key)
    authenticator = open_authenticator(config, lambda: 0)

    assert authenticator.certificate is not None
    assert authenticator.tls is authenticator.certificate.context
    assert authenticator.certificate.http2_context is not authenticator.tls


class Renewing:
    """A authenticator with copies of certificates, to be replaced."""

    def __init__(self, certificates: Certificates, folder: Path) -> None:
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.put(certificates.cert, certificates.key)
        self.clock = Hand()
        config = SecurityConfig(tls_cert=self.cert, tls_key=self.key)
        self.authenticator = open_authenticator(config, self.clock)

    def put(self, cert: Path | None, key: Path | None) -> None:
        """Replace files."""
        for source, place in ((cert, self.cert), (key, self.key)):
            if source is not None:
                part = place.with_suffix(".part")
                part.write_bytes(source.read_bytes())
                part.chmod(0o600)
                part.replace(place)

    def look(self, times: int = 1) -> list[str]:
        """Let time pass, and return what was logged."""
        with capture_logs() as lines:
            for _ in range(times):
                self.clock.now_ms += LOOK_MS
                self.authenticator.look()
        return [line["event"] for line in lines]


@pytest.fixture
def renewing(certificates: Certificates, tmp_path: Path) -> Renewing:
    return Renewing(certificates, tmp_path)


def test_a_renewed_certificate_counts_from_the_next_look_on(
    renewing: Renewing, certificates: Certificates
) -> None:
    authenticator, former = renewing.authenticator, renewing.authenticator.tls
    assert authenticator.certificate is not None
    former_http2 = authenticator.certificate.http2_context
    assert renewing.look(3) == []
    assert authenticator.tls is former

    renewing.put(certificates.client_cert, certificates.client_key)
    assert authenticator.tls is former
    assert renewing.look(3) == ["certificate_read"]

    assert authenticator.tls is not None
    assert authenticator.tls is not former
    assert authenticator.certificate.http2_context is not former_http2


def test_half_of_a_renewal_changes_nothing_and_is_told_once(
    renewing: Renewing, certificates: Certificates
) -> None:
    former = renewing.authenticator.tls
    renewing.put(certificates.client_cert, None)
    assert renewing.look(3) == ["certificate_not_read"]
    assert renewing.authenticator.tls is former

    renewing.put(None, certificates.client_key)
    assert renewing.look(3) == ["certificate_read"]
    assert renewing.authenticator.tls is not former


@pytest.mark.parametrize("file", ["cert", "key"])
def test_a_certificate_whose_files_are_gone_stays(renewing: Renewing, file: str) -> None:
    former = renewing.authenticator.tls
    path = renewing.cert if file == "cert" else renewing.key
    content = path.read_bytes()
    path.unlink()
    assert renewing.look(3) == ["certificate_not_read"]
    assert renewing.authenticator.tls is former

    path.write_bytes(content)
    path.chmod(0o600)
    assert renewing.look(3) == ["certificate_read"]


def test_a_certificate_is_not_lost_while_there_are_no_files_to_open(
    renewing: Renewing, certificates: Certificates
) -> None:
    former = renewing.authenticator.tls
    renewing.put(certificates.client_cert, certificates.client_key)
    with out_of_files():
        assert renewing.look() == ["certificate_not_read"]
    assert renewing.authenticator.tls is former

    assert renewing.look() == ["certificate_read"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_key_that_others_may_read_or_write_is_told_and_taken(
    certificates: Certificates, tmp_path: Path, mode: int
) -> None:
    key = tmp_path / "key"
    key.write_bytes(certificates.key.read_bytes())
    key.chmod(mode)
    with capture_logs() as lines:
        open_authenticator(SecurityConfig(tls_cert=certificates.cert, tls_key=key), lambda: 0)

    [line] = lines
    assert (line["event"], line["log_level"]) == ("tls_key_open_to_others", "warning")
    assert (line["path"], line["mode"]) == (str(key), f"{mode:o}")


def test_a_key_that_only_its_owner_may_read_is_not_worth_a_word(certificates: Certificates) -> None:
    with capture_logs() as lines:
        open_authenticator(
            SecurityConfig(tls_cert=certificates.cert, tls_key=certificates.key), lambda: 0
        )

    assert lines == []


def test_files_that_cannot_be_read_are_told_together(
    certificates: Certificates, tmp_path: Path
) -> None:
    config = SecurityConfig(
        tls_cert=tmp_path / "a",
        tls_key=tmp_path,
        tls_client_ca=tmp_path / "c",
        tokens=tmp_path / "d",
    )

    assert refused(config) == [
        f"--tls-cert {tmp_path}/a: cannot be read: No such file or directory",
        f"--tls-key {tmp_path}: cannot be read: Is a directory",
        f"--tls-client-ca {tmp_path}/c: cannot be read: No such file or directory",
        f"--tokens {tmp_path}/d: cannot be read: No such file or directory",
    ]


def test_the_key_of_another_certificate_is_told(certificates: Certificates) -> None:
    key = certificates.client_key
    config = SecurityConfig(tls_cert=certificates.cert, tls_key=key)

    assert refused(config) == [f"--tls-key {key}: is not the key of --tls-cert {certificates.cert}"]


def test_a_key_with_a_password_is_told_with_the_way_out(certificates: Certificates) -> None:
    config = SecurityConfig(tls_cert=certificates.cert, tls_key=certificates.encrypted_key)

    [mistake] = refused(config)

    assert "has a password" in mistake
    assert "openssl pkey" in mistake


def test_files_that_are_no_certificates_are_told(certificates: Certificates, file: Path) -> None:
    [mistake] = refused(SecurityConfig(tls_cert=file, tls_key=certificates.key))
    assert "are not a certificate and its key in PEM" in mistake

    config = SecurityConfig(
        tls_cert=certificates.cert, tls_key=certificates.key, tls_client_ca=certificates.key
    )
    assert refused(config) == [f"--tls-client-ca {certificates.key}: has no certificates in PEM"]


# Contradictions


def read(**flags: str) -> ServerConfig:
    paths = {name.replace("__", "."): value for name, value in flags.items()}
    return read_config(flags=paths, environment={})


def contradictions(**flags: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(**flags)
    return caught.value.mistakes


def test_half_of_a_certificate_is_refused() -> None:
    assert contradictions(security__tls_cert="a.pem") == [
        "--tls-cert is given without --tls-key: TLS needs both"
    ]
    assert contradictions(security__tls_key="a.key") == [
        "--tls-key is given without --tls-cert: TLS needs both"
    ]
    assert contradictions(security__tls_client_ca="ca.pem") == [
        "--tls-client-ca is given without --tls-cert and --tls-key: add them"
    ]


def test_an_address_without_tls_is_not_advertised_by_a_broker_with_it() -> None:
    secured = {"security__tls_cert": "a.pem", "security__tls_key": "a.key"}
    [mistake] = contradictions(grpc__advertise="http://b:6650", **secured)
    assert mistake.startswith("--advertise http://b:6650: with --tls-cert ")
    assert mistake.endswith("write https://, or the host alone")
    for advertise in ("https://b:6650", "b"):
        assert read(grpc__advertise=advertise, **secured).grpc.advertise == advertise
    # Somebody else may speak TLS in its place.
    for advertise in ("http://b:6650", "https://b:6650"):
        assert read(grpc__advertise=advertise).grpc.advertise == advertise


def test_a_path_with_a_zero_byte_is_a_mistake() -> None:
    assert contradictions(security__tokens="a\0b") == [
        "--tokens a\0b: has a zero byte in it, which no path has"
    ]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_tokens_need_no_tls_on_this_machine(host: str) -> None:
    assert read(security__tokens="t", native__host=host).security.tokens == Path("t")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "broker.local"])
def test_tokens_without_tls_are_refused_where_others_could_read_them(host: str) -> None:
    [mistake] = contradictions(security__tokens="t", native__host=host)
    assert mistake.startswith(f"--tokens without TLS on --host {host}: ")

    [mistake] = contradictions(security__tokens="t", http__host=host)
    assert mistake.startswith(f"--tokens without TLS on --http-host {host}: ")

    [mistake] = contradictions(security__tokens="t", grpc__host=host)
    assert "add --tls-cert and --tls-key" in mistake


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "broker.local"])
def test_tokens_are_taken_with_tls_and_where_nobody_listens(host: str) -> None:
    off = read(security__tokens="t", grpc__host=host, grpc__mode="off")
    secured = read(
        security__tokens="t",
        native__host=host,
        security__tls_cert="a.pem",
        security__tls_key="a.key",
    )

    assert off.security.tokens == secured.security.tokens == Path("t")
