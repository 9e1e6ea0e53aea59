"""Certificates for tests: an authority, a broker's and a client's by it, and a stranger's.

Keys are on a curve: making one takes a millisecond.
"""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Certificates", "make_certificates"]

PASSWORD = b"certificates of tests"
VALID = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of files in PEM. Keys can be read by their owner alone."""

    ca: Path
    # Of a broker at localhost, 127.0.0.1 and ::1.
    cert: Path
    key: Path
    # The same key, with a password.
    encrypted_key: Path
    client_cert: Path
    client_key: Path
    # An authority that nobody trusts, and what it signed for a client.
    other_ca: Path
    other_cert: Path
    other_key: Path


@dataclass(frozen=True, slots=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_certificates(folder: Path) -> Certificates:
    """Write a set of certificates into `folder`, valid from yesterday until tomorrow."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, other = _authority("Ister tests"), _authority("Nobody's")
    server_key, client_key, other_key = _key(), _key(), _key()
    return Certificates(
        ca=_write(folder / "ca.pem", _pem(authority.certificate)),
        cert=_write(folder / "server.pem", _pem(_signed(authority, "localhost", server_key))),
        key=_write(folder / "server.key", _key_pem(server_key)),
        encrypted_key=_write(folder / "server-encrypted.key", _key_pem(server_key, PASSWORD)),
        client_cert=_write(folder / "client.pem", _pem(_signed(authority, "client", client_key))),
        client_key=_write(folder / "client.key", _key_pem(client_key)),
        other_ca=_write(folder / "other-ca.pem", _pem(other.certificate)),
        other_cert=_write(folder / "other.pem", _pem(_signed(other, "client", other_key))),
        other_key=_write(folder / "other.key", _key_pem(other_key)),
    )


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(name: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - VALID)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _authority(name: str) -> _Authority:
    key = _key()
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return _Authority(certificate, key)


def _signed(authority: _Authority, name: str, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    issuer = authority.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0]
    names = x509.SubjectAlternativeName(
        [
            x509.DNSName(name),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            x509.IPAddress(ipaddress.ip_address("::1")),
        ]
    )
    usage = x509.ExtendedKeyUsage(
        [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    )
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    return (
        _builder(name, str(issuer.value), key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .add_extension(usage, critical=False)
        .add_extension(signer, critical=False)
        .sign(authority.key, hashes.SHA256())
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey, password: bytes | None = None) -> bytes:
    hidden = (
        serialization.NoEncryption()
        if password is None
        else serialization.BestAvailableEncryption(password)
    )
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path
