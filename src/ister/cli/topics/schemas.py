"""`ister schemas`: register, look up, compare and delete schemas, and bind topics to them."""

import base64
import sys
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from ister.base import SchemaBinding, SchemaSubject, SchemaVersion
from ister.base.errors import BadRequestError, ConflictError
from ister.base.limits import CONTROL_BYTES_MAX
from ister.cli.console.access import URL, UrlOption, connect
from ister.cli.console.completion import topic_argument
from ister.cli.console.terminal import (
    JsonOption,
    YesOption,
    confirm,
    counted,
    flush,
    run,
    say,
    write,
    write_json,
    write_table,
)
from ister.client import Client, Schema

schemas = typer.Typer(
    no_args_is_help=True, help="Register and compare schemas, and bind topics to them."
)

# What a file's name says about it.
TYPES_BY_SUFFIX = {".json": "json_schema", ".avsc": "avro", ".proto": "protobuf"}

_R = TypeVar("_R")

SubjectArgument = Annotated[str, typer.Argument(help="Its name, as default.orders-value.")]
TopicArgument = Annotated[str, topic_argument("As /default/orders.")]
FileArgument = Annotated[
    Path | None,
    typer.Argument(help="The definition; - or nothing: stdin. Plain types have none."),
]
TypeOption = Annotated[
    str | None,
    typer.Option(
        "--type",
        help="json_schema, avro, protobuf, string, bytes, int64 or another number; by default "
        "what the file's name says: .json, .avsc, .proto.",
    ),
]
ModeOption = Annotated[
    str | None,
    typer.Option(
        help="none, backward, forward, full, or one of these with _transitive.",
        show_default="that of the subject; backward for a new one",
    ),
]
VersionOption = Annotated[int | None, typer.Option(min=1, help="Its number.")]


@schemas.command("register")
def register_schema(
    subject: SubjectArgument,
    file: FileArgument = None,
    url: UrlOption = URL,
    type: TypeOption = None,
    mode: ModeOption = None,
    description: Annotated[str, typer.Option(help="A few words for people.")] = "",
    created_by: Annotated[str, typer.Option(metavar="NAME", help="Who made it.")] = "",
    tag: Annotated[list[str] | None, typer.Option(help="A word to sort by. Repeatable.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Register a schema as the next version of a subject.

    A definition that means the same as a version there is gets that version. One that breaks what
    the subject's mode promises is refused, with every reason.

    \b
    Examples:
      ister schemas register default.orders-value order.json
      ister schemas register default.clicks-value click.avsc --mode full_transitive
      ister schemas register default.prices-value --type double
    """
    schema = _read_schema(file, type)
    done = _call(
        url,
        lambda client: client.schemas.register(
            subject,
            schema,
            description=description,
            created_by=created_by,
            tags=tag or (),
            mode=mode,
        ),
    )
    if as_json:
        write_json(done._asdict())
    new = "is registered" if done.is_new else "was registered before"
    say(f"version {done.version} of {subject} {new} (schema id {done.schema_id})")


@schemas.command("get")
def get_schema(
    subject: SubjectArgument,
    url: UrlOption = URL,
    version: VersionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the definition of a schema, the latest version unless told otherwise.

    With --json an object: subject, schema_id, version, type, fingerprint, description, created_by,
    tags, created_ms, and definition (text) or definition_base64 (when it is no UTF-8).

    \b
    Examples:
      ister schemas get default.orders-value
      ister schemas get default.orders-value --version 1 > order-1.json
    """
    found = _call(url, lambda client: client.schemas.get(subject, version or 0))
    if as_json:
        write_json(_version_row(found))
        return
    write(found.definition)
    if not found.definition.endswith(b"\n"):
        write(b"\n")
    flush()


@schemas.command("list")
def list_schemas(
    subject: Annotated[
        str, typer.Argument(help="List the versions of this one; all subjects by default.")
    ] = "",
    url: UrlOption = URL,
    as_json: JsonOption = False,
) -> None:
    """List subjects, or the versions of one.

    \b
    Examples:
      ister schemas list
      ister schemas list default.orders-value --json
    """
    if subject:
        versions = _call(url, lambda client: client.schemas.versions(subject))
        if as_json:
            write_json([_version_row(one) for one in versions])
        else:
            _write_versions(versions)
        return
    subjects = _call(url, lambda client: client.schemas.list())
    if as_json:
        write_json(subjects)
    else:
        _write_subjects(subjects)


@schemas.command("check")
def check_schema(
    subject: SubjectArgument,
    file: FileArgument = None,
    url: UrlOption = URL,
    type: TypeOption = None,
    mode: ModeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell whether a schema could be the next version of a subject; nothing changes.

    Every reason why not is a line on stdout, and the exit code is that of a conflict (73).

    \b
    Examples:
      ister schemas check default.orders-value order.json
      ister schemas check default.orders-value order.json --mode full
    """
    schema = _read_schema(file, type)
    reasons = _call(url, lambda client: client.schemas.check(subject, schema, mode=mode))
    if as_json:
        write_json({"compatible": not reasons, "reasons": reasons})
    else:
        write("".join(f"{reason}\n" for reason in reasons).encode())
        flush()
    if reasons:
        say(f"ister: {counted(len(reasons), 'reason')} against it as a version of {subject}")
        raise typer.Exit(ConflictError.exit_code)
    say(f"it is compatible with {subject}")


@schemas.command("delete")
def delete_schema(
    subject: SubjectArgument,
    url: UrlOption = URL,
    version: VersionOption = None,
    yes: YesOption = False,
) -> None:
    """Delete a version of a subject, or the subject with all of its versions.

    Messages that were written with it can be read as bytes only from then on.

    \b
    Examples:
      ister schemas delete default.orders-value --version 2
      ister schemas delete default.orders-value --yes
    """
    found = _call(url, lambda client: client.schemas.describe(subject))
    what = f"version {version} of {subject}"
    if version is None:
        what = f"{subject} with its {counted(len(found.versions), 'version')}"
    confirm(f"this deletes schema {what} for good", yes=yes)
    _call(url, lambda client: client.schemas.delete(subject, version))
    say(f"schema {what} is deleted")


@schemas.command("mode")
def schema_mode(
    subject: SubjectArgument,
    mode: Annotated[
        str | None,
        typer.Argument(help="none, backward, forward, full, or one with _transitive."),
    ] = None,
    url: UrlOption = URL,
    as_json: JsonOption = False,
) -> None:
    """Print or set what new versions of a subject are to be compatible with.

    backward: they read what was written with the one before. forward: the one before reads what is
    written with them. full: both. With _transitive: with all before. none: anything goes.

    \b
    Examples:
      ister schemas mode default.orders-value
      ister schemas mode default.orders-value full_transitive
    """
    if mode is not None:
        _call(url, lambda client: client.schemas.set_mode(subject, mode))
        say(f"new versions of {subject} are to be compatible as {mode} says")
        return
    found = _call(url, lambda client: client.schemas.describe(subject))
    if as_json:
        write_json({"subject": subject, "mode": found.mode})
    else:
        write(f"{found.mode}\n".encode())


@schemas.command("bind")
def bind_schema(
    topic: TopicArgument,
    subject: SubjectArgument,
    url: UrlOption = URL,
    policy: Annotated[
        str, typer.Option(help="enforce: refuse what does not fit. warn: log and count it. none.")
    ] = "enforce",
    payload: Annotated[
        bool, typer.Option("--payload/--no-payload", help="Look into the payloads, too.")
    ] = True,
    version: Annotated[int | None, typer.Option(min=1, help="Take this version alone.")] = None,
    min_version: Annotated[
        int | None, typer.Option(min=1, help="Take this version and later ones.")
    ] = None,
) -> None:
    """Let a topic, with all its partitions, take messages of one subject.

    \b
    Examples:
      ister schemas bind /default/orders default.orders-value
      ister schemas bind /default/orders default.orders-value --policy warn --min-version 2
    """
    bound = _call(
        url,
        lambda client: client.schemas.bind(
            topic,
            subject,
            policy=policy,
            validate_payload=payload,
            version=version,
            min_version=min_version,
        ),
    )
    say(f"{topic} takes messages of {subject}: {bound.policy}")


@schemas.command("unbind")
def unbind_schema(topic: TopicArgument, url: UrlOption = URL) -> None:
    """Let a topic take anything again.

    \b
    Example:
      ister schemas unbind /default/orders
    """
    _call(url, lambda client: client.schemas.unbind(topic))
    say(f"{topic} takes any message")


@schemas.command("binding")
def schema_binding(topic: TopicArgument, url: UrlOption = URL, as_json: JsonOption = False) -> None:
    """Print what a topic is bound to.

    \b
    Example:
      ister schemas binding /default/orders
    """
    found = _call(url, lambda client: client.schemas.binding(topic))
    if as_json:
        write_json(found)
    else:
        _write_binding(found)


def _call(url: str, work: Callable[[Client], Coroutine[Any, Any, _R]]) -> _R:
    """Do one thing with a client of the broker."""

    async def call() -> _R:
        async with connect(url) as client:
            return await work(client)

    return run(call())


def _read_schema(file: Path | None, type: str | None) -> Schema:
    """Return the schema in a file or on stdin."""
    named = file if file is not None and str(file) != "-" else None
    word = type or TYPES_BY_SUFFIX.get(named.suffix if named is not None else "")
    if word is None:
        words = ", ".join(f"{suffix} ({name})" for suffix, name in TYPES_BY_SUFFIX.items())
        raise BadRequestError(f"say --type: only {words} tell it by the name of the file")
    if named is not None:
        with named.open("rb") as opened:
            definition = opened.read(CONTROL_BYTES_MAX + 1)
    elif file is None and (sys.stdin.isatty() or word not in TYPES_BY_SUFFIX.values()):
        # Nobody gave one, and a plain type needs none.
        definition = b""
    else:
        definition = sys.stdin.buffer.read(CONTROL_BYTES_MAX + 1)
    return Schema(word, definition)


def _version_row(version: SchemaVersion) -> dict[str, object]:
    row = asdict(version)
    try:
        row["definition"] = version.definition.decode()
    except UnicodeDecodeError:
        del row["definition"]
        row["definition_base64"] = base64.b64encode(version.definition).decode()
    return row


def _write_subjects(rows: list[SchemaSubject]) -> None:
    write_table(
        ("SUBJECT", "ID", "TYPE", "MODE", "LATEST", "VERSIONS", "TAGS"),
        [
            (
                row.subject,
                row.schema_id,
                row.type,
                row.mode,
                row.latest_version,
                len(row.versions),
                ", ".join(row.tags) or "-",
            )
            for row in rows
        ],
    )


def _write_versions(rows: list[SchemaVersion]) -> None:
    write_table(
        ("VERSION", "TYPE", "CREATED", "CREATED BY", "FINGERPRINT", "DESCRIPTION"),
        [
            (
                row.version,
                row.type,
                row.created.isoformat(timespec="seconds"),
                row.created_by or "-",
                row.fingerprint[:19],
                row.description or "-",
            )
            for row in rows
        ],
    )


def _write_binding(row: SchemaBinding) -> None:
    taken = f"from {row.min_version} on" if row.min_version else "any"
    write_table(
        ("TOPIC", "SUBJECT", "ID", "POLICY", "PAYLOADS", "VERSIONS"),
        [
            (
                row.topic,
                row.subject,
                row.schema_id,
                row.policy,
                row.validate_payload,
                row.version or taken,
            )
        ],
    )
