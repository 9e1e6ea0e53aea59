"""The addresses of doors: whether they can be listened on, and what is wrong with one that cannot.

A start finds out before it takes anything over from a broker that runs. Nothing is kept open: a
door that opens later can still fail when another process takes its port in between. A socket that
is bound and does not listen yet keeps no other server from the port, since both reuse addresses.
One that listens would have clients wait until the take-over is done, instead of trying the broker
that still runs.
"""

import asyncio
import errno
import socket


async def check_addresses(host: str, port: int) -> None:
    """Raise the `OSError` of listening on every address that a host has, as asyncio does."""
    loop = asyncio.get_running_loop()
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # Without this, "every address" of IPv6 includes those of IPv4.
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(address)


def explain(error: OSError, host: str, port: int) -> str:
    """Return what is wrong with an address, and the way out."""
    if error.errno == errno.EADDRINUSE:
        return f"{host}:{port} is taken: stop who has it, or choose another port (0 picks one)"
    if error.errno == errno.EACCES:
        return f"{host}:{port} is not allowed for this user: choose a port above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host!r} is no address of this machine"
    if isinstance(error, socket.gaierror):
        return f"host {host!r} is not known: {error.strerror}"
    return f"{host}:{port}: {error.strerror or error}"
