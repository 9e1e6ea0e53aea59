"""What is wrong with a configuration whose values are each fine by themselves."""

from typing import TYPE_CHECKING

from ister.base import is_loopback, size_text

if TYPE_CHECKING:
    from ister.config.config import ServerConfig


def contradictions(config: "ServerConfig") -> list[str]:
    """Return every contradiction, in the words of the settings."""
    limits = config.limits
    found = []
    if limits.message_bytes_max > limits.batch_bytes_max:
        found.append(
            f"limits: message_bytes_max ({size_text(limits.message_bytes_max)}) is above "
            f"batch_bytes_max ({size_text(limits.batch_bytes_max)}): a batch holds the message"
        )
    if limits.queue_bytes_max > limits.queues_bytes_max:
        found.append(
            f"limits: queue_bytes_max ({size_text(limits.queue_bytes_max)}) is above "
            f"queues_bytes_max ({size_text(limits.queues_bytes_max)}), which bounds all queues"
        )
    if config.storage.accept_unencrypted and config.storage.key_file is None:
        found.append("--accept-unencrypted is given without --key-file: nothing would be encrypted")
    return found + _shared_ports(config) + _shared_places(config) + _half_secured(config)


def _shared_ports(config: "ServerConfig") -> list[str]:
    """Return which ports are given to several doors."""
    doors = [
        ("--port", config.native.host, config.native.port),
        ("--http-port", config.http_host, config.http.port),
    ]
    if config.grpc.wanted:
        doors.append(("--grpc-port", config.grpc_host, config.grpc_port))
        doors.append(("--admin-port", config.grpc_host, config.admin_port))
    found = []
    for slot, (flag, host, port) in enumerate(doors):
        others = [f for f, h, p in doors[slot + 1 :] if (h, p) == (host, port) and p != 0]
        if others:
            flags = " and ".join([flag, *others])
            found.append(f"port {port} is given to {flags}: each door needs its own")
    return found


def _shared_places(config: "ServerConfig") -> list[str]:
    """Return which of the places that need files of their own are one and the same."""
    places = {
        "--data": config.data_folder.absolute().as_uri(),
        "--object-store": config.storage.object_store.rstrip("/"),
        "--tier": config.storage.tier.rstrip("/"),
    }
    given = [(flag, place) for flag, place in places.items() if place]
    return [
        f"{flag} and {other} are both {place}: each needs a folder of its own"
        for slot, (flag, place) in enumerate(given)
        for other, second in given[slot + 1 :]
        if place == second
    ]


def _half_secured(config: "ServerConfig") -> list[str]:
    """Return what protects less than it looks."""
    security = config.security
    found = []
    if (security.tls_cert is None) != (security.tls_key is None):
        given, missing = ("--tls-cert", "--tls-key")
        if security.tls_cert is None:
            given, missing = missing, given
        found.append(f"{given} is given without {missing}: TLS needs both")
    elif security.tls_client_ca is not None and security.tls_cert is None:
        found.append("--tls-client-ca is given without --tls-cert and --tls-key: add them")
    if security.tls_cert is not None and config.grpc.advertise.startswith("http://"):
        found.append(
            f"--advertise {config.grpc.advertise}: with --tls-cert Danube's clients need TLS: "
            "write https://, or the host alone"
        )
    if security.tokens is not None and security.tls_cert is None:
        found += [
            f"--tokens without TLS on {flag} {host}: anybody on the way could read them: "
            "add --tls-cert and --tls-key, or listen on 127.0.0.1"
            for flag, host in _hosts(config).items()
            if not is_loopback(host)
        ]
    return found


def _hosts(config: "ServerConfig") -> dict[str, str]:
    """Return where doors listen, by the flag that says so."""
    hosts = {"--host": config.native.host, "--http-host": config.http_host}
    if config.grpc.wanted:
        hosts["--grpc-host"] = config.grpc_host
    followers = {flag for flag in hosts if flag != "--host" and hosts[flag] == hosts["--host"]}
    return {flag: host for flag, host in hosts.items() if flag not in followers}
