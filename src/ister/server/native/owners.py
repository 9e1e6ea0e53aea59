"""The identity of a client over reconnects."""

from hashlib import blake2b

from ister.wire import Hello


def owner_of(hello: Hello, session: int) -> str:
    """Return the owner of the consumers and commits of a connection.

    Connections with the same id and secret have the same owner. The id alone does not suffice,
    because other clients can learn it. Without a secret each connection is an owner of its own.
    """
    if not hello.secret:
        return f"{hello.client_id}#{session}"
    # A digest, so that the secret itself is not kept.
    digest = blake2b(hello.secret.encode(errors="replace"), digest_size=16).hexdigest()
    return f"{hello.client_id}#{digest}"
