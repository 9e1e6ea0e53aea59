"""`ister topics`: list, create, describe, update, purge and delete topics."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, get_args

import typer

from ister.base import (
    StreamReport,
    SubscriptionReport,
    TimelineReport,
    TopicReport,
    rounded_size,
    rounded_span,
)
from ister.base.errors import BadRequestError, TopicNotFoundError, WrongKindError
from ister.cli.console.access import URL, UrlOption, connect
from ister.cli.console.completion import topic_argument
from ister.cli.console.terminal import (
    JsonOption,
    YesOption,
    confirm,
    counted,
    run,
    say,
    write_json,
    write_table,
)
from ister.cli.console.values import parse_size_option, parse_span_option
from ister.cli.messages.transfer import export_topic, import_topic
from ister.cli.topics.tables import show_table
from ister.client import Client, DurabilityName, RetentionName

topics = typer.Typer(no_args_is_help=True, help="See and change topics.")
topics.command("table")(show_table)
topics.command("export")(export_topic)
topics.command("import")(import_topic)

_COLUMNS = (
    "TOPIC", "KIND", "MESSAGES", "PRODUCERS", "SUBSCRIPTIONS", "IN", "OUT", "DROPPED", "BYTES IN",
    "STORED",
)  # fmt: skip

# Each is a question of its own to the store: 100 take a tenth of a second.
TIMELINES_COUNTED_MAX = 100

DurabilityOption = Annotated[
    str | None,
    typer.Option(
        help="What an acknowledgement means: memory (received), os (written), fsync (on the "
        "disk), object (in the object store).",
        show_default="fsync",
    ),
]
RetentionOption = Annotated[
    str | None,
    typer.Option(
        help="What is kept: limits, interest (what some subscription has not acknowledged), "
        "workqueue (its one subscription), compact (the newest of each key).",
        show_default="limits",
    ),
]
MaxAgeOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Drop what is older, as 7d.")
]
MaxBytesOption = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Drop the oldest beyond this, as 10GiB.")
]
MaxMessagesOption = Annotated[
    int | None, typer.Option(min=1, help="Drop the oldest beyond this many.")
]
TtlOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Deliver nothing that is older.")
]
DedupWindowOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="How long message ids are known.", show_default="2m"),
]
MinCompactionLagOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="With retention compact: drop no message younger than this.",
        show_default="0s",
    ),
]
KeyOffsetsOption = Annotated[
    bool,
    typer.Option("--key-offsets", help="Keep the newest offset of each key, to be expected."),
]
KindOption = Annotated[
    str,
    typer.Option(
        help="live: for whoever is there. stream: kept, acknowledged, replayed. timeline: each "
        "message when it is due. priority: the same, of what is due the lowest level first. cron: "
        "messages again and again, by rules."
    ),
]
MaxLeaseOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Of a timeline: the longest lease there is.", show_default="1h"
    ),
]
MaxLeasesOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Of a timeline: leases of a message before it is a dead letter; 0 for no end.",
        show_default="5",
    ),
]
DeadLetterTopicOption = Annotated[
    str | None,
    typer.Option(metavar="TOPIC", help="Of a timeline: where they go.", show_default="<topic>-dlq"),
]


@topics.command("list")
def list_topics(
    pattern: Annotated[str, topic_argument("As '/default/orders.*'; all by default.")] = "",
    url: UrlOption = URL,
    as_json: JsonOption = False,
) -> None:
    """List topics with what happened on them since the broker started, and what they keep.

    MESSAGES is how many a stream keeps (of a compacted one at most so many), and how many a
    timeline has, due or not. IN, OUT and DROPPED count since the broker started; what does not
    apply to a kind of topic is -.

    \b
    Examples:
      ister topics list
      ister topics list '/default/orders.>' --json
    """

    async def fetch() -> tuple[list[TopicReport], dict[str, int]]:
        async with connect(url) as client:
            rows = await client.topics(pattern)
            return rows, {} if as_json else await _count_timelines(client, rows)

    rows, counts = run(fetch())
    if as_json:
        write_json(rows)
    else:
        _write_topics(rows, counts)


@topics.command("create")
def create_topic(
    topic: Annotated[str, typer.Argument(help="As /default/orders.")],
    url: UrlOption = URL,
    partitions: Annotated[int, typer.Option(min=0, help="0 for a topic without.")] = 0,
    kind: KindOption = "live",
    durability: DurabilityOption = None,
    retention: RetentionOption = None,
    max_age: MaxAgeOption = None,
    max_bytes: MaxBytesOption = None,
    max_messages: MaxMessagesOption = None,
    ttl: TtlOption = None,
    dedup_window: DedupWindowOption = None,
    min_compaction_lag: MinCompactionLagOption = None,
    key_offsets: KeyOffsetsOption = False,
    max_lease: MaxLeaseOption = None,
    max_leases: MaxLeasesOption = None,
    dead_letter_topic: DeadLetterTopicOption = None,
) -> None:
    """Create a topic; nothing happens when it exists with the same settings.

    \b
    Examples:
      ister topics create /default/prices --partitions 4
      ister topics create /default/orders --kind stream --max-age 7d --max-bytes 10GiB
      ister topics create /default/jobs --kind stream --retention workqueue
      ister topics create /default/reminders --kind timeline --max-leases 5
    """
    asked_durability, asked_retention = _durability(durability), _retention(retention)
    asked_age, asked_ttl = parse_span_option(max_age, "--max-age"), parse_span_option(ttl, "--ttl")
    asked_window = parse_span_option(dedup_window, "--dedup-window")
    asked_lag = parse_span_option(min_compaction_lag, "--min-compaction-lag")
    asked_lease = parse_span_option(max_lease, "--max-lease")
    size_bytes = parse_size_option(max_bytes, "--max-bytes")

    async def create() -> None:
        async with connect(url) as client:
            await client.create_topic(
                topic,
                kind=kind,
                partitions=partitions,
                durability=asked_durability,
                retention=asked_retention,
                max_bytes=size_bytes,
                max_messages=max_messages,
                max_leases=max_leases,
                dead_letter_topic=dead_letter_topic,
                max_age=asked_age,
                ttl=asked_ttl,
                dedup_window=asked_window,
                min_compaction_lag=asked_lag,
                key_offsets=key_offsets,
                max_lease=asked_lease,
            )

    run(create())
    say(f"topic {topic} is there")


@topics.command("update")
def update_topic(
    topic: Annotated[str, typer.Argument(help="A stream, as /default/orders.")],
    url: UrlOption = URL,
    durability: Annotated[
        str | None, typer.Option(help="memory, os or fsync; 'object' stays as it is.")
    ] = None,
    max_age: MaxAgeOption = None,
    max_bytes: MaxBytesOption = None,
    max_messages: Annotated[
        int | None, typer.Option(min=0, help="Drop the oldest beyond this many; 0 for no end.")
    ] = None,
    ttl: TtlOption = None,
    dedup_window: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long message ids are known.")
    ] = None,
    min_compaction_lag: MinCompactionLagOption = None,
    yes: YesOption = False,
) -> None:
    """Change settings of a stream and of all its partitions; the others stay as they are.

    0 takes a limit away. New limits count within seconds, and messages beyond them are dropped. A
    new durability and dedup window count from the next message on, a ttl for all deliveries, a
    compaction lag for what is not compacted yet.

    \b
    Examples:
      ister topics update /default/orders --max-age 30d --yes
      ister topics update /default/orders --max-bytes 0 --durability os
    """
    asked = _durability(durability)
    asked_lag = parse_span_option(min_compaction_lag, "--min-compaction-lag")
    asked_age, asked_ttl = parse_span_option(max_age, "--max-age"), parse_span_option(ttl, "--ttl")
    asked_window = parse_span_option(dedup_window, "--dedup-window")
    asked_bytes = parse_size_option(max_bytes, "--max-bytes")
    options = (asked, asked_lag, asked_age, asked_ttl, asked_window, asked_bytes, max_messages)
    if all(option is None for option in options):
        raise typer.BadParameter("give a setting to change: see `ister topics update --help`")
    limits = [
        ("--max-age", max_age, "max_age_ms", (asked_age or 0) * 1000),
        ("--max-bytes", max_bytes, "max_bytes", asked_bytes or 0),
        ("--max-messages", max_messages, "max_messages", max_messages or 0),
        ("--ttl", ttl, "ttl_ms", (asked_ttl or 0) * 1000),
    ]
    if said := run(_lowered(url, topic, limits)):
        confirm(f"drops the messages of {topic} that are beyond {said}", yes=yes)

    async def update() -> None:
        async with connect(url) as client:
            await client.update_topic(
                topic,
                durability=asked,
                max_age=asked_age,
                max_bytes=asked_bytes,
                max_messages=max_messages,
                ttl=asked_ttl,
                dedup_window=asked_window,
                min_compaction_lag=asked_lag,
            )

    run(update())
    say(f"topic {topic} is changed")


async def _lowered(url: str, topic: str, limits: Sequence[tuple[str, object, str, float]]) -> str:
    """Return those options whose limit a topic does not have yet, or has a higher one of."""
    if not any(limit for *_, limit in limits):
        return ""
    async with connect(url) as client:
        rows = await client.topics(topic)
    there = [asdict(row.stream.settings) for row in rows if row.stream is not None]
    return " ".join(
        f"{option} {said}"
        for option, said, name, limit in limits
        if limit and any(not one[name] or limit < one[name] for one in there)
    )


@topics.command("describe")
def describe_topic(
    topic: Annotated[str, topic_argument("As /default/orders.")],
    url: UrlOption = URL,
    as_json: JsonOption = False,
) -> None:
    """Show a topic, its partitions and its subscriptions; of a stream, what it keeps and how.

    Of a timeline, what is due and leased, how late messages were, and its settings.

    \b
    Example:
      ister topics describe /default/orders --json
    """

    async def fetch() -> tuple[list[TopicReport], list[SubscriptionReport], dict[str, int]]:
        async with connect(url) as client:
            rows, subscriptions = await _describe(client, topic)
            return rows, subscriptions, {} if as_json else await _count_timelines(client, rows)

    rows, subscriptions, counts = run(fetch())
    if as_json:
        write_json({"topic": topic, "topics": rows, "subscriptions": subscriptions})
        return
    _write_topics(rows, counts)
    streams = [(row, row.stream) for row in rows if row.stream is not None]
    if streams:
        _write_streams(streams)
    for row in rows:
        if row.timeline is not None:
            _write_timeline(row.timeline)
    if subscriptions:
        write_table(
            ("SUBSCRIPTION", "ON", "TYPE", "CONSUMERS", "LAG"),
            [
                (
                    one.subscription,
                    one.topic,
                    one.type,
                    len(one.consumers),
                    one.cursor.lag if one.cursor is not None else "-",
                )
                for one in subscriptions
            ],
        )


@topics.command("purge")
def purge_topic(
    topic: Annotated[str, topic_argument("A stream, as /default/orders.")],
    url: UrlOption = URL,
    before: Annotated[
        int | None, typer.Option(min=0, metavar="OFFSET", help="Keep this one and what follows.")
    ] = None,
    yes: YesOption = False,
) -> None:
    """Drop the messages of a stream, all of them or those before an offset.

    The topic, its settings and its subscriptions stay, and offsets go on where they were. Also
    what a work queue has not delivered yet is gone.

    \b
    Examples:
      ister topics purge /default/orders
      ister topics purge /default/orders --before 1000 --yes
    """

    async def fetch() -> list[TopicReport]:
        async with connect(url) as client:
            return (await _describe(client, topic))[0]

    async def purge() -> int:
        async with connect(url) as client:
            return await client.purge(topic, before=before)

    rows = run(fetch())
    if rows[0].timeline is not None:
        reason = "delete its messages with `ister timeline delete`, or the topic"
        raise WrongKindError(topic, rows[0].kind, reason)
    if rows[0].stream is None:
        raise WrongKindError(topic, rows[0].kind, "it keeps nothing that could be purged")
    messages = sum(_kept(row, before) for row in rows)
    which = "" if before is None else f" before offset {before:,}"
    what = counted(messages, "message")
    confirm(f"drops {what} of {topic}{which}, acknowledged or not", yes=yes)
    say(f"dropped {counted(run(purge()), 'message')} of {topic}")


@topics.command("delete")
def delete_topic(
    topic: Annotated[str, topic_argument("As /default/orders.")],
    url: UrlOption = URL,
    yes: YesOption = False,
) -> None:
    """Delete a topic with its partitions and messages; its producers and consumers are closed.

    \b
    Example:
      ister topics delete /default/orders --yes
    """

    async def fetch() -> tuple[list[TopicReport], list[SubscriptionReport]]:
        async with connect(url) as client:
            return await _describe(client, topic)

    async def delete() -> None:
        async with connect(url) as client:
            await client.delete_topic(topic)

    rows, subscriptions = run(fetch())
    consumers = sum(len(one.consumers) for one in subscriptions)
    consumers += sum(row.timeline.consumers for row in rows if row.timeline is not None)
    parts = "" if rows[0].topic == topic else f" with its {counted(len(rows), 'partition')}"
    text = (
        f"deletes topic {topic}{parts}, used by "
        f"{counted(sum(r.producers for r in rows), 'producer')} and "
        f"{counted(consumers, 'consumer')}"
    )
    if rows[0].stream is not None:
        durable = sum(one.cursor is not None and one.topic == topic for one in subscriptions)
        text += (
            f", with its {counted(sum(_kept(row, None) for row in rows), 'message')} and "
            f"{counted(durable, 'durable subscription')}"
        )
    elif rows[0].timeline is not None:
        text += ", with all its messages, due or not"
    confirm(text, yes=yes)
    run(delete())
    say(f"topic {topic} is deleted")


async def _describe(
    client: Client, topic: str
) -> tuple[list[TopicReport], list[SubscriptionReport]]:
    rows = await client.topics(topic)
    if not rows:
        raise TopicNotFoundError(topic)
    found: dict[tuple[str, str], SubscriptionReport] = {}
    for name in {topic, *(row.topic for row in rows)}:
        for one in await client.subscriptions(name):
            found[one.topic, one.subscription] = one
    return rows, [found[key] for key in sorted(found)]


def _kept(row: TopicReport, before: int | None) -> int:
    """Return how many messages a stream keeps, of those before an offset if one is given."""
    assert row.stream is not None
    end = row.next_offset if before is None else min(before, row.next_offset)
    return max(0, end - row.stream.first_offset)


async def _count_timelines(client: Client, rows: list[TopicReport]) -> dict[str, int]:
    """Return how many messages each timeline has, of the first `TIMELINES_COUNTED_MAX`."""
    names = [row.topic for row in rows if row.timeline is not None][:TIMELINES_COUNTED_MAX]
    return {name: await client.timeline(name).count() for name in names}


def _write_topics(rows: list[TopicReport], counts: dict[str, int]) -> None:
    write_table(
        _COLUMNS,
        [
            (
                row.topic,
                row.kind,
                _kept(row, None) if row.stream is not None else counts.get(row.topic, "-"),
                *_flow(row),
                rounded_size(row.stream.stored_bytes) if row.stream is not None else "-",
            )
            for row in rows
        ],
    )


def _flow(row: TopicReport) -> tuple[object, ...]:
    """Return who uses a topic and what went through it; a timeline counts what it delivered."""
    if row.timeline is not None:
        return ("-", "-", "-", row.messages_out, "-", "-")
    return (
        row.producers,
        row.subscriptions,
        row.messages_in,
        row.messages_out,
        row.messages_dropped,
        row.bytes_in,
    )


def _write_streams(rows: list[tuple[TopicReport, StreamReport]]) -> None:
    write_table(
        ("STREAM", "FIRST OFFSET", "NEXT OFFSET", "STORED", "IN MEMORY", "SEGMENTS"),
        [
            (
                row.topic,
                stream.first_offset,
                row.next_offset,
                rounded_size(stream.stored_bytes),
                rounded_size(stream.tail_bytes),
                stream.segments,
            )
            for row, stream in rows
        ],
    )
    settings = rows[0][1].settings
    limits = ("MAX AGE", "MAX BYTES", "MAX MESSAGES", "TTL", "DEDUP WINDOW", "COMPACTION LAG")
    write_table(
        ("DURABILITY", "RETENTION", *limits),
        [
            (
                settings.durability,
                settings.retention,
                _span(settings.max_age_ms),
                rounded_size(settings.max_bytes) if settings.max_bytes else "-",
                settings.max_messages or "-",
                _span(settings.ttl_ms),
                _span(settings.dedup_window_ms),
                _span(settings.compaction_lag_ms),
            )
        ],
    )


def _write_timeline(report: TimelineReport) -> None:
    write_table(
        ("CONSUMERS", "DUE", "FIRST DUE", "LEASES", "PREFETCHED", "OUT", "LOST", "DEAD LETTERS"),
        [
            (
                report.consumers,
                report.due,
                f"{rounded_span(report.due_ms)} ago" if report.due else "-",
                report.leases,
                report.prefetched,
                report.delivered,
                report.lost,
                report.buried,
            )
        ],
    )
    write_table(
        ("LATENESS P50", "P99", "MEASURED", "DRIFT", "MAX LEASE", "MAX LEASES", "LETTERS GO TO"),
        [
            (
                _lateness(report, 0.5),
                _lateness(report, 0.99),
                report.lateness_count,
                f"{report.drift_us / 1000:g}ms" if report.consumers else "-",
                rounded_span(report.settings.lease_ms_max),
                report.settings.max_leases or "-",
                report.settings.dead_letters or f"{report.topic}-dlq",
            )
        ],
    )


def _lateness(report: TimelineReport, share: float) -> str:
    """Return the bound that so large a share of the messages was not later than."""
    if not report.lateness_count:
        return "-"
    for bound_s, count in report.lateness:
        if count >= share * report.lateness_count:
            return f"≤ {1000 * bound_s:g}ms"
    return "> 1m"


def _span(milliseconds: int) -> str:
    return rounded_span(milliseconds) if milliseconds else "-"


def _durability(word: str | None) -> DurabilityName | None:
    if word is not None and word not in get_args(DurabilityName):
        raise BadRequestError(
            f"--durability {word!r} is not one of {', '.join(get_args(DurabilityName))}"
        )
    return word  # type: ignore[return-value]  # checked the line above


def _retention(word: str | None) -> RetentionName | None:
    if word is not None and word not in get_args(RetentionName):
        raise BadRequestError(
            f"--retention {word!r} is not one of {', '.join(get_args(RetentionName))}"
        )
    return word  # type: ignore[return-value]  # checked the line above
