"""The broker of a pipeline and the credentials for it: a token by reference, and TLS files.

What the file does not set comes from the environment variables of the command line.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from ister.base import DEFAULT_URL
from ister.base.errors import BadRequestError
from ister.spark.pipelines.config.definition import Text
from ister.spark.pipelines.config.elements import absolute_path
from ister.spark.pipelines.config.fields import Fields, Notes
from ister.spark.pipelines.config.variables import Secret

ACCESS_KEYS = ("broker", "token", "tls_ca", "tls_cert", "tls_key")

_TLS_VARIABLES = {
    "tls_ca": "ISTER_TLS_CA",
    "tls_cert": "ISTER_TLS_CLIENT_CERT",
    "tls_key": "ISTER_TLS_CLIENT_KEY",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAccess:
    """The address of a broker and the credentials for it, as in `Definition`."""

    broker: Text
    token: Text
    tls_ca: str
    tls_cert: str
    tls_key: str


def access(fields: Fields, notes: Notes) -> BrokerAccess:
    """Return the broker and the credentials; mistakes are noted."""
    broker = _broker(fields, notes)
    # The value of a secret is not known yet: the data source checks it.
    has_tls = isinstance(broker, Secret) or broker.startswith("isters://")
    files = {key: _file(fields, notes, key, has_tls=has_tls) for key in _TLS_VARIABLES}
    if bool(files["tls_cert"]) != bool(files["tls_key"]):
        key = "tls_cert" if files["tls_cert"] else "tls_key"
        fields.mistake(key, "`tls_cert` and `tls_key` belong together: give both, or none")
    token = _token(fields, notes)
    if token and isinstance(broker, str) and re.match(r"ister://[^@]+$", broker):
        _check_way(fields, broker)
    return BrokerAccess(broker=broker, token=token, **files)


def _broker(fields: Fields, notes: Notes) -> Text:
    value, key = fields.secret_text("broker"), "`broker`"
    if value is None:
        value, key = notes.environment.get("ISTER_URL") or DEFAULT_URL, "ISTER_URL"
    if isinstance(value, Secret):
        return value
    if any(mark in value for mark in "@?#"):
        # Whatever stands there is most likely a secret: it is not shown.
        fields.mistake("broker", f"{key} has no user or token in it: write `token`")
    elif not re.match(r"isters?://[^/\s]", value):
        said = f"`{value}` is no broker: write ister://host:port, or isters:// with TLS"
        fields.mistake("broker", said)
    return value


def _token(fields: Fields, notes: Notes) -> Text:
    if not fields.has("token"):
        return _token_of_variables(fields, notes)
    value = fields.secret_text("token")
    if value is None or isinstance(value, Secret):
        return value or ""
    # Also `${NAME}`, whose value would stand in what is printed of the pipeline.
    said = "`token` is for everybody who reads this file: write `${file:PATH}` or `${env:NAME}`"
    fields.mistake("token", said)
    return ""


def _token_of_variables(fields: Fields, notes: Notes) -> Text:
    token, path = (notes.environment.get(key) for key in ("ISTER_TOKEN", "ISTER_TOKEN_FILE"))
    if token and path:
        fields.mistake("token", "ISTER_TOKEN and ISTER_TOKEN_FILE are both set: unset one of them")
    if path:
        return Secret(f"${{file:{Path(path).absolute()}}}")
    return Secret("${env:ISTER_TOKEN}") if token else ""


def _check_way(fields: Fields, url: str) -> None:
    """Note a token that would be sent unencrypted."""
    # It takes a while to load, and only who has a token waits for it.
    from ister.client import connect

    try:
        connect(url, token="any")
    except BadRequestError as error:
        fields.mistake("broker", str(error))


def _file(fields: Fields, notes: Notes, key: str, *, has_tls: bool) -> str:
    text = fields.text(key)
    if text is not None:
        if not has_tls:
            fields.mistake(key, f"`{key}` is for TLS: write `broker` as isters://host:port")
        return absolute_path(text, notes.folder)
    found = notes.environment.get(_TLS_VARIABLES[key]) if has_tls else None
    return str(Path(found).absolute()) if found else ""
