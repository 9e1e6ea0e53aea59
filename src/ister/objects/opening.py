"""From the address of a store to the store, and a test that it keeps the one promise we need."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from ister.base import NO_SECRETS, without_secrets
from ister.base.errors import ConfigError, ObjectExistsError
from ister.objects.folder import LocalStore
from ister.objects.local import LocalDisk
from ister.objects.memory import MemoryDisk

if TYPE_CHECKING:
    from ister.objects.remote import RemoteStore

REMOTE_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")


def open_store(url: str, options: Mapping[str, str] | None = None) -> "LocalStore | RemoteStore":
    """Return the object store at `url`: `file://`, `memory://`, `s3://`, `gs://` or `az://`.

    `options` are those of the kind of store, such as `endpoint`, `region`, `access_key_id` and
    `secret_access_key`; without them the usual environment variables and machine roles count.
    No request is sent to a remote store yet. Raises `ConfigError` for a bad URL, and for one with
    credentials: stores ignore them there, and logs and process lists would show them.
    """
    told = without_secrets(url)
    if told != url and not url.startswith("file:"):
        raise ConfigError([f"store {told}: {NO_SECRETS}"])
    parts = urlsplit(url)
    match parts.scheme:
        case "file":
            if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
                raise ConfigError([f"store {told}: write three slashes, `file:///path/to/folder`"])
            return LocalStore(LocalDisk(Path(unquote(parts.path))))
        case "memory":
            return LocalStore(MemoryDisk(url))
        case scheme if scheme in REMOTE_SCHEMES:
            # Half of the start-up time of this folder, for those who use it.
            from ister.objects.remote import open_remote

            return open_remote(url, options or {})
    known = ", ".join(f"{scheme}://" for scheme in ("file", "memory", *REMOTE_SCHEMES))
    raise ConfigError([f"store {told}: use one of {known}"])


def store_options(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what object stores need to be told beside their usual environment variables.

    An endpoint without TLS is somebody's own server, named on purpose: no second word is asked.
    """
    plain = any(
        "ENDPOINT" in name and value.startswith("http://")
        for name, value in environment.items()
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))
    )
    return {"allow_http": "true"} if plain else {}


def verify_store(store: "LocalStore | RemoteStore") -> None:
    """Make sure that the store can be written, read, and refuses to replace an object.

    Some that call themselves S3 ignore the condition and replace: two brokers with one journal
    would then overwrite each other's acknowledged messages. Raises `ConfigError` for such a
    store, and `OSError` when it cannot be used at all.
    """
    name = f"probes/{secrets.token_hex(8)}"
    store.put(name, b"first")
    try:
        store.put(name, b"second")
    except ObjectExistsError:
        pass
    else:
        mistake = (
            "replaces objects that it was told to only create: use one with conditional writes"
        )
        raise ConfigError([f"store {store.url} {mistake} (If-None-Match)"])
    finally:
        store.remove(name)
