"""`ister timeline cron`: rules that make messages again and again."""

import time
from datetime import datetime
from typing import Annotated
from zoneinfo import ZoneInfo

import typer

from ister.base import printable
from ister.base.errors import BadRequestError
from ister.cli.console.access import URL, UrlOption
from ister.cli.console.completion import topic_argument
from ister.cli.console.terminal import (
    JsonOption,
    YesOption,
    confirm,
    flush,
    json_line,
    parse_pairs,
    say,
    write,
    write_json,
    write_table,
)
from ister.cli.console.values import parse_span_option
from ister.cli.timelines.calls import (
    AttributeOption,
    GroupOption,
    PayloadArgument,
    VersionOption,
    payload_of,
    tell_changed,
    with_timeline,
    write_version,
)
from ister.cli.timelines.rows import RULE_COLUMNS, moment_text, rule_cells, rule_row, utc_text
from ister.client import MessageVersion, Timeline, TimelineMessage

cron = typer.Typer(
    no_args_is_help=True,
    help="Rules of a cron topic: each makes a message at every time of its expression.",
)

KIND = "cron"
PREVIEW_COUNT = 5

TopicArgument = Annotated[str, topic_argument("A cron topic, as /default/jobs.")]
RuleArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the rule.")]
ExpressionArgument = Annotated[
    str,
    typer.Argument(
        metavar="CRON",
        help="Minute, hour, day of the month, month and day of the week, as '0 9 * * MON-FRI'; or "
        "'@every 5s'.",
    ),
]
ZoneOption = Annotated[
    str | None,
    typer.Option(metavar="ZONE", help="Its time zone, as Europe/Vienna.", show_default="UTC"),
]


NewIdOption = Annotated[str | None, typer.Option(help="Id of the rule; it gets one unless given.")]
JitterOption = Annotated[
    str | None,
    typer.Option(metavar="SPAN", help="Up to so much later each time: 30s.", show_default="0s"),
]
CatchUpOption = Annotated[
    str | None,
    typer.Option(
        metavar="SPAN",
        help="How long after a time the broker makes up for it when it was down.",
        show_default="1h",
    ),
]
OverlapOption = Annotated[
    str,
    typer.Option(
        help="While the message before is not done: skip the next, buffer one, or allow it."
    ),
]
ReplaceOption = Annotated[
    bool, typer.Option("--replace", help="Replace the rule of --id, which is there.")
]


@cron.command("put")
def put(
    topic: TopicArgument,
    expression: ExpressionArgument,
    payload: PayloadArgument = "-",
    url: UrlOption = URL,
    id: NewIdOption = None,
    tz: ZoneOption = None,
    jitter: JitterOption = None,
    catch_up: CatchUpOption = None,
    overlap: OverlapOption = "skip",
    attribute: AttributeOption = None,
    group: GroupOption = "default",
    replace: ReplaceOption = False,
    version: VersionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a rule: at every time of CRON there is a message. Prints its id.

    The topic is made by `ister topics create --kind cron`. Its messages are called after rule and
    time, as nightly@2026-11-16T01:30:00Z, and consumed by `ister timeline consume`.

    \b
    Examples:
      ister timeline cron put /default/jobs "*/5 * * * *" "look for mail"
      ister timeline cron put /default/jobs "@every 5s" "look at the queue" --id look
      ister timeline cron put /default/jobs "30 2 * * *" "report" --id nightly --tz Europe/Vienna
      ister timeline cron put /default/jobs "0 3 * * *" "report" --id nightly --replace
    """
    if replace and id is None:
        raise typer.BadParameter("--replace needs the --id of a rule")
    if version is not None and not replace:
        raise typer.BadParameter("--version goes with --replace")
    attributes = parse_pairs(attribute or (), "--attribute") or None
    jitter_s = parse_span_option(jitter, "--jitter")
    catch_up_s = parse_span_option(catch_up, "--catch-up")
    data = payload_of(payload)

    async def call(one: Timeline) -> MessageVersion:
        if replace and id is not None:
            return await one.update(
                id,
                data,
                attributes=attributes,
                version=version,
                cron=expression,
                tz=tz,
                jitter=jitter_s,
                catch_up=catch_up_s,
                overlap=overlap,
            )
        return await one.put(
            data,
            id=id,
            attributes=attributes,
            cron=expression,
            tz=tz,
            jitter=jitter_s,
            catch_up=catch_up_s,
            overlap=overlap,
        )

    made = with_timeline(url, topic, group, call, kind=KIND)
    if as_json:
        write_version(topic, made)
    else:
        write(made.id.encode() + b"\n")
        say(f"stored in {topic} at version {made.version}")


@cron.command("get")
def get(
    topic: TopicArgument, id: RuleArgument, url: UrlOption = URL, as_json: JsonOption = False
) -> None:
    """Show a rule: when it fires next, how often it has, and what its messages say.

    \b
    Examples:
      ister timeline cron get /default/jobs nightly
      ister timeline cron get /default/jobs nightly --json | jq .next
    """
    message = with_timeline(url, topic, "default", lambda one: one.get(id), kind=KIND)
    if message.cron is None:
        raise BadRequestError(f"{id!r} is no rule: see `ister timeline get`")
    if as_json:
        write_json(rule_row(topic, message))
        return
    write_table(RULE_COLUMNS, [rule_cells(message)])
    if message.attributes:
        write_table(("ATTRIBUTE", "VALUE"), sorted(message.attributes.items()))
    flush()
    write(message.payload + b"\n")


@cron.command("list")
def list_rules(topic: TopicArgument, url: UrlOption = URL, as_json: JsonOption = False) -> None:
    """List the rules of a topic, in the order they were made. With --json each line is a rule.

    \b
    Examples:
      ister timeline cron list /default/jobs
      ister timeline cron list /default/jobs --json | jq -r 'select(.paused) | .id'
    """

    async def collect(one: Timeline) -> list[TimelineMessage]:
        found: list[TimelineMessage] = []
        async for message in one.rules():
            if as_json:
                write(json_line(rule_row(topic, message)))
            else:
                found.append(message._replace(payload=b"", attributes={}))
        return found

    found = with_timeline(url, topic, "default", collect, kind=KIND)
    if not as_json:
        write_table(RULE_COLUMNS, [rule_cells(message) for message in found])
    flush()


@cron.command("pause")
def pause(
    topic: TopicArgument,
    id: RuleArgument,
    url: UrlOption = URL,
    group: GroupOption = "default",
    version: VersionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have a rule make no messages until it is resumed; those of that time are not made later.

    \b
    Example:
      ister timeline cron pause /default/jobs nightly
    """
    paused = with_timeline(url, topic, group, lambda one: one.pause(id, version), kind=KIND)
    tell_changed(topic, paused, "paused", as_json=as_json)


@cron.command("resume")
def resume(
    topic: TopicArgument,
    id: RuleArgument,
    url: UrlOption = URL,
    group: GroupOption = "default",
    version: VersionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have a rule go on with the times to come.

    \b
    Example:
      ister timeline cron resume /default/jobs nightly
    """
    resumed = with_timeline(url, topic, group, lambda one: one.resume(id, version), kind=KIND)
    tell_changed(topic, resumed, "resumed", as_json=as_json)


@cron.command("delete")
def delete(
    topic: TopicArgument,
    id: RuleArgument,
    url: UrlOption = URL,
    group: GroupOption = "default",
    version: VersionOption = None,
    yes: YesOption = False,
) -> None:
    """Remove a rule. Messages that it has made and that are due stay.

    \b
    Example:
      ister timeline cron delete /default/jobs nightly --yes
    """
    confirm(f"deletes rule {printable(id)} of {topic}", yes=yes)
    with_timeline(url, topic, group, lambda one: one.delete(id, version), kind=KIND)
    say(f"rule {printable(id)} of {topic} is deleted")


@cron.command("preview")
def preview(
    what: Annotated[
        str,
        typer.Argument(metavar="CRON|TOPIC", help="An expression; or a topic, then with an ID."),
    ],
    id: Annotated[str | None, typer.Argument(help="Id of a rule of that topic.")] = None,
    url: UrlOption = URL,
    tz: ZoneOption = None,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=1_000, help="How many times.")
    ] = PREVIEW_COUNT,
    as_json: JsonOption = False,
) -> None:
    """Show the next times of an expression, without a broker, or those of a rule.

    \b
    Examples:
      ister timeline cron preview "0 9 * * 1-5" --tz Europe/Vienna -n 5
      ister timeline cron preview /default/jobs nightly
    """
    if id is not None:
        if tz is not None:
            raise typer.BadParameter("a rule has a zone of its own: --tz goes with an expression")
        moments = with_timeline(url, what, "default", lambda one: one.preview(id, count), kind=KIND)
    elif what.startswith("/"):
        raise typer.BadParameter(f"say which rule of {what}: see `ister timeline cron list {what}`")
    else:
        # Most commands do without what stores take to load.
        from ister.timeline import parse_rule

        rule = parse_rule(what, tz or "UTC")
        slots = rule.preview(time.time_ns() // 1_000_000, count)
        moments = [datetime.fromtimestamp(slot_ms / 1000, ZoneInfo(rule.zone)) for slot_ms in slots]
    rows = [(moment_text(moment), utc_text(moment)) for moment in moments]
    if as_json:
        for local, utc in rows:
            write(json_line({"time": local, "utc": utc}))
        flush()
    else:
        write_table(("TIME", "UTC"), rows)
