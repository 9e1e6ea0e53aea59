"""The doors for Danube: the client API on one port, the admin API on another.

Both run in the broker's event loop. A call that our own code fails on costs that call; a client
that asks for too much is refused by name; nothing is held for a client beyond its window.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from ister.broker import Broker
from ister.metadata import Metadata
from ister.server.grpc.admin.services import admin_services
from ister.server.grpc.admin.settings import SubscriptionSettings
from ister.server.grpc.calls.calls import Method
from ister.server.grpc.calls.server import GrpcServer
from ister.server.grpc.consumers import Consumers
from ister.server.grpc.discovery import Discovery, Health
from ister.server.grpc.messages import service
from ister.server.grpc.producers import Producers
from ister.server.grpc.registry import registry_service
from ister.server.grpc.roll import ConsumerRecord, ProducerRecord, Roll, live_topics
from ister.server.grpc.schemas import SchemaRefs
from ister.server.operations import Dispatcher, topic_exists, topic_identity
from ister.server.security import Authenticator

if TYPE_CHECKING:
    from ister.registry import Registry

# How often producers and consumers are looked at that were not heard of.
SWEEP_S = 5.0
# How many of them until all that is known of former clients is looked through: a minute.
SWEEPS_PER_LOOK = 12
# Everywhere, which is nothing to connect to.
WILDCARDS = ("0.0.0.0", "::", "")


class GrpcDoor:
    """Serves Danube's client API and its admin API, each on a port of its own."""

    def __init__(
        self,
        broker: Broker,
        *,
        registry: "Registry",
        metadata: Metadata,
        dispatcher: Dispatcher,
        authenticator: Authenticator | None = None,
        connections_max: int | None = None,
    ) -> None:
        """`connections_max` is of each of the two ports, by default that of the broker."""
        self._broker = broker
        self._connections_max = connections_max or broker.limits.connections_max
        self._authenticator = authenticator or Authenticator()
        self._roll = Roll(metadata, broker.clock.now_ms)
        self._settings = SubscriptionSettings(
            metadata, identity_of=partial(topic_identity, dispatcher.node)
        )
        self._producers = Producers(broker, self._roll, SchemaRefs(registry))
        self._consumers = Consumers(broker, self._roll, self._settings.acks)
        self._discovery = Discovery(broker)
        self._registry = registry
        self._dispatcher = dispatcher
        self.servers: list[GrpcServer] = []
        self._sweeps = 0
        self._sweeping = broker.clock.call_later(SWEEP_S, self._sweep)
        broker.streams.after_commit.append(self._flush)

    async def load(self) -> None:
        """Read who was here before; live topics of theirs, which a restart ends, are made again."""
        await self._settings.load(exists=partial(topic_exists, self._dispatcher.node))
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
        methods = {
            **service(
                "danube.ProducerService",
                {"CreateProducer": producers.create},
                direct={"SendMessage": producers.send},
            ),
            **service(
                "danube.ConsumerService",
                {"Subscribe": consumers.subscribe, "ReceiveMessages": consumers.receive},
                direct={"Ack": consumers.ack, "Nack": consumers.nack},
            ),
            **service(
                "danube.Discovery",
                {"TopicLookup": discovery.lookup, "TopicPartitions": discovery.partitions},
            ),
            **service("danube.HealthCheck", {"HealthCheck": health.check}),
            **service("danube.StorageService", {"ListSegmentDescriptors": discovery.segments}),
            **registry_service(self._registry, self._broker),
        }
        bound = await self._serve(host, port, methods)
        url = url_of(advertise or host, bound, tls=self._authenticator.tls is not None)
        discovery.broker_url = producers.broker_url = consumers.broker_url = url
        self._dispatcher.node.advertised = url
        return host, bound

    async def listen_admin(self, host: str, port: int) -> tuple[str, int]:
        """Open the port of the admin API and return the address; port 0 picks a free one."""
        methods = {
            **admin_services(self._dispatcher, self._settings),
            **registry_service(self._registry, self._broker),
        }
        return host, await self._serve(host, port, methods)

    async def close(self, deadline_s: float) -> None:
        """End streams so that clients come again, answer what is under way, then close."""
        self._sweeping.cancel()
        self._consumers.close()
        self._producers.closing = True
        # Ends when the last call has, or at the deadline.
        await asyncio.gather(*(server.close(deadline_s) for server in self.servers))
        self._producers.close()
        self._roll.forget_topics(self._broker.catalog.topics)
        await self._roll.saved()

    async def _serve(self, host: str, port: int, methods: Mapping[str, Method]) -> int:
        broker = self._broker
        server = GrpcServer(
            methods,
            authenticator=self._authenticator,
            limits=broker.limits,
            connections_max=self._connections_max,
            now_ms=broker.clock.monotonic_ms,
            counts=broker.grpc,
        )
        server.after_read += [self._producers.publish_runs, self._broker.end_of_turn.run]
        self.servers.append(server)
        return await server.listen(host, port)

    def _flush(self) -> None:
        """Send the answers to what a journal has just committed."""
        for server in self.servers:
            server.flush()

    def _sweep(self) -> None:
        self._producers.sweep()
        self._consumers.sweep()
        self._sweeps += 1
        if self._sweeps % SWEEPS_PER_LOOK == 0:
            # Else a restart would make topics again that somebody has deleted.
            self._roll.forget_topics(self._broker.catalog.topics)
        self._sweeping = self._broker.clock.call_later(SWEEP_S, self._sweep)


def url_of(host: str, port: int, *, tls: bool = False) -> str:
    """Return how clients reach us, empty for an address that stands for every one."""
    if host.startswith(("http://", "https://")):
        return host
    if host in WILDCARDS:
        return ""
    return f"{'https' if tls else 'http'}://{_join(host, port)}"


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
