"""The doors for Danube: the client API on one port, the admin API on another.

Both run in the broker's event loop. A call that our own code fails on costs that call; a client
that asks for too much is refused by name; nothing is held for a client beyond its window.
"""

import asyncio
import errno
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import grpc
import structlog

from ister.base.errors import ConfigError
from ister.base.limits import MIB
from ister.broker import Broker
from ister.metadata import Metadata
from ister.server.admin import Admin
from ister.server.grpc.admin import admin_services
from ister.server.grpc.admin_settings import SubscriptionSettings
from ister.server.grpc.consumers import Consumers
from ister.server.grpc.discovery import Discovery, Health
from ister.server.grpc.messages import service
from ister.server.grpc.producers import Producers
from ister.server.grpc.registry import registry_service
from ister.server.grpc.roll import ConsumerRecord, ProducerRecord, Roll, live_topics
from ister.server.grpc.schemas import SchemaRefs
from ister.server.grpc.security import TokenCheck, credentials
from ister.server.security import Guard

if TYPE_CHECKING:
    from ister.registry import Registry

logger = structlog.get_logger("grpc")

# Far above what a message may have, so that we say what is too large: what gRPC says itself,
# Danube's clients repeat for ever.
REQUEST_BYTES_MAX = 32 * MIB
# Calls on one connection: a Danube client has one for everything, with a stream for each consumer.
STREAMS_PER_CONNECTION_MAX = 10_000
# A connection that nothing was heard on for so long is asked for a sign of life, and cut off when
# none comes: its consumers' messages wait for somebody.
KEEPALIVE_MS = 20_000
KEEPALIVE_TIMEOUT_MS = 10_000
# Between a connection and the first words of HTTP/2, a TLS handshake included.
HANDSHAKE_MS_MAX = 5_000
# A connection without a call under way is ended after this: strangers make no calls, and would
# else have it for ever. Danube's clients ask every 5 s whether they are well, and a stream is a
# call; any client of gRPC connects again when it has something to ask.
IDLE_MS_MAX = 30_000
SWEEP_S = 5.0
# How often streams are looked at whose token may have been taken back.
LOOK_S = 1.0
# How many of them until all that is known of former clients is looked through: a minute.
SWEEPS_PER_LOOK = 12
# Everywhere, which is nothing to connect to.
WILDCARDS = ("0.0.0.0", "::", "")

# It has a TLS library of its own, which takes less than the one of the other doors.
_BAD_CERTIFICATE = (
    "--tls-cert, --tls-key: the gRPC doors cannot use them: take files with nothing but whole "
    "certificates and a key, RSA or on the curve P-256 or P-384, or open no such doors (--no-grpc)"
)


class GrpcDoor:
    """See the module."""

    def __init__(
        self,
        broker: Broker,
        *,
        registry: "Registry",
        metadata: Metadata,
        admin: Admin,
        guard: Guard | None = None,
        connections_max: int | None = None,
    ) -> None:
        """`connections_max` is of each of the two ports, by default that of the broker."""
        self._broker = broker
        self._connections_max = connections_max or broker.limits.connections_max
        self._guard = guard or Guard()
        self._tokens = TokenCheck(self._guard)
        self._roll = Roll(metadata, broker.clock.now_ms)
        self._settings = SubscriptionSettings(metadata, identity_of=admin.topics.identity)
        self._producers = Producers(broker, self._roll, SchemaRefs(registry))
        self._consumers = Consumers(broker, self._roll, self._settings.acks)
        self._discovery = Discovery(broker)
        self._registry = registry
        self._admin = admin
        self._servers: list[grpc.aio.Server] = []
        self._sweeps = 0
        self._sweeping = broker.clock.call_later(SWEEP_S, self._sweep)
        self._looking = broker.clock.call_later(LOOK_S, self._look)

    async def load(self) -> None:
        """Read who was here before; live topics of theirs, which a restart ends, are made again."""
        await self._settings.load(exists=self._admin.topics.exists)
        await self._roll.load()
        records: list[ProducerRecord | ConsumerRecord] = [
            *self._roll.producers.values(),
            *self._roll.consumers.values(),
        ]
        for topic in live_topics(records):
            self._producers.make_again(topic)

    async def listen(self, host: str, port: int, *, advertise: str = "") -> tuple[str, int]:
        """Open the port of the client API and return the address; port 0 picks a free one."""
        health = Health(self._producers.is_known, self._consumers.is_known)
        producers, consumers, discovery = self._producers, self._consumers, self._discovery
        services = [
            service(
                "danube.ProducerService",
                {"CreateProducer": producers.create},
                raw={"SendMessage": producers.send},
            ),
            service(
                "danube.ConsumerService",
                {"Subscribe": consumers.subscribe, "ReceiveMessages": consumers.receive},
                raw={"Ack": consumers.ack, "Nack": consumers.nack},
            ),
            service(
                "danube.Discovery",
                {"TopicLookup": discovery.lookup, "TopicPartitions": discovery.partitions},
            ),
            service("danube.HealthCheck", {"HealthCheck": health.check}),
            service("danube.StorageService", {"ListSegmentDescriptors": discovery.segments}),
            registry_service(self._registry, self._broker),
        ]
        bound = await self._serve(host, port, services)
        url = url_of(advertise or host, bound, tls=self._guard.tls is not None)
        discovery.broker_url = producers.broker_url = consumers.broker_url = url
        self._admin.advertised = url
        return host, bound

    async def listen_admin(self, host: str, port: int) -> tuple[str, int]:
        """Open the port of the admin API and return the address; port 0 picks a free one."""
        services = [
            *admin_services(self._admin, self._settings),
            registry_service(self._registry, self._broker),
        ]
        return host, await self._serve(host, port, services)

    async def close(self, deadline_s: float) -> None:
        """End streams so that clients come again, answer what is under way, then close."""
        self._sweeping.cancel()
        self._looking.cancel()
        self._consumers.close()
        self._producers.closing = True
        # Ends when the last call has, or at the deadline.
        await asyncio.gather(*(server.stop(deadline_s) for server in self._servers))
        self._producers.close()
        self._roll.forget_topics(self._broker.catalog.topics)
        await self._roll.saved()

    async def _serve(self, host: str, port: int, services: Sequence[grpc.GenericRpcHandler]) -> int:
        await check_address(host, port)
        guard = self._guard
        interceptors = [self._tokens] if guard.asks else None
        server: Any = grpc.aio.server(
            options=_options(self._connections_max), interceptors=interceptors
        )
        server.add_generic_rpc_handlers(tuple(services))
        try:
            if guard.certificate is None:
                bound = server.add_insecure_port(_join(host, port))
            else:
                secured = credentials(guard.certificate)
                bound = server.add_secure_port(_join(host, port), secured)
        except RuntimeError as error:
            # gRPC says no more. If the port is free, it is the certificate.
            await check_address(host, port)
            if guard.certificate is not None:
                raise ConfigError([_BAD_CERTIFICATE]) from error
            raise OSError(errno.EADDRINUSE, str(error)) from error
        await server.start()
        self._servers.append(server)
        return int(bound)

    def _look(self) -> None:
        self._tokens.sweep()
        self._looking = self._broker.clock.call_later(LOOK_S, self._look)

    def _sweep(self) -> None:
        self._producers.sweep()
        self._consumers.sweep()
        self._sweeps += 1
        if self._sweeps % SWEEPS_PER_LOOK == 0:
            # Else a restart would make topics again that somebody has deleted.
            self._roll.forget_topics(self._broker.catalog.topics)
        self._sweeping = self._broker.clock.call_later(SWEEP_S, self._sweep)


async def check_address(host: str, port: int) -> None:
    """Raise the `OSError` that says what is wrong with an address; gRPC itself does not tell."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def _options(connections_max: int) -> list[tuple[str, int]]:
    """Return the settings of a port."""
    return [
        ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
        ("grpc.max_allowed_incoming_connections", connections_max),
        ("grpc.max_connection_idle_ms", IDLE_MS_MAX),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS_MAX),
        # Clients may ask for signs of life as often as they like.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        # Two brokers on one port would each get half of the clients.
        ("grpc.so_reuseport", 0),
    ]


def url_of(host: str, port: int, *, tls: bool = False) -> str:
    """Return how clients reach us, empty for an address that stands for every one."""
    if host.startswith(("http://", "https://")):
        return host
    if host in WILDCARDS:
        return ""
    return f"{'https' if tls else 'http'}://{_join(host, port)}"


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
