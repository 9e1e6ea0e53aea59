"""How a command reaches its broker: `--url`, a token, and the files of TLS.

Every command with a `url: UrlOption` has the options of `_OPTIONS` as well: `AccessGroup` adds
them, and the url that the command gets carries what they said, as far as `connect`.

`--url` and those options may also stand before the command: `ister --url URL topics list`.

Always true: no option has the token itself, which everybody on the machine could see in the list
of processes; it comes from a file, or from ISTER_TOKEN.
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup, TyperOption

from ister.base import (
    DEFAULT_URL,
    TLS_CA_VARIABLE,
    TLS_CERT_VARIABLE,
    TLS_KEY_VARIABLE,
    TOKEN_FILE_VARIABLE,
    URL_VARIABLE,
    full_name,
)
from ister.base.errors import BadRequestError
from ister.cli.console.terminal import forget_stdout
from ister.telemetry import console_class

if TYPE_CHECKING:
    from ister.client import Client, Tls, Token

_PANEL = "TLS and token"
# Option, variable and help.
_OPTIONS = (
    (
        "--token-file",
        TOKEN_FILE_VARIABLE,
        "A file with your token, for a broker that asks who you are; or set ISTER_TOKEN to it.",
    ),
    (
        "--tls-ca",
        TLS_CA_VARIABLE,
        "Who may have signed the broker's certificate, with isters://. The system's by default.",
    ),
    (
        "--tls-cert",
        TLS_CERT_VARIABLE,
        "Your own certificate, for a broker that asks for one.",
    ),
    ("--tls-key", TLS_KEY_VARIABLE, "The key of that certificate."),
)
ACCESS_OPTIONS = tuple(option for option, _, _ in _OPTIONS)


class BrokerUrl(str):
    """A url, with what its broker wants to see. The token is in no `repr`."""

    __slots__ = ("tls", "token")

    token: "Token | None"
    tls: "Tls | None"


def _with_access(context: typer.Context, url: str) -> BrokerUrl:
    if not _is_typed(context, "url"):
        url = context.meta.get(_ROOT_URL) or url
    given: dict[str, str | None] = {option: context.meta.get(option) for option in ACCESS_OPTIONS}
    typed: set[str] = context.meta.get(_TYPED, set())
    empty = [option for option in typed if not given[option]]
    if empty:
        # Else `--tls-ca "$CA"` would trust the system's authorities where $CA is not set.
        raise BadRequestError(f"{min(empty)} is empty: name a file, or leave it out")
    found = BrokerUrl(url)
    found.token = _token(given["--token-file"], is_flag="--token-file" in typed)
    found.tls = _tls(url, given, typed)
    return found


UrlOption = Annotated[
    str,
    typer.Option(
        "--url",
        envvar=URL_VARIABLE,
        metavar="URL",
        callback=_with_access,
        help="The broker, as ister://host:port, or isters:// with TLS.",
    ),
]
URL = DEFAULT_URL


def connect(url: str, *, name: str = "") -> "Client":
    """Return a client of a command's broker, as `ister.connect` does."""
    from ister import client

    token, tls = (url.token, url.tls) if isinstance(url, BrokerUrl) else (None, None)
    # At a terminal the error says more than half a minute of silence.
    return client.connect(str(url), token=token, tls=tls, name=name, connect_timeout=0)


class AccessGroup(TyperGroup):
    """The root of the command line, with the options that reach a broker."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        _add_options(self.commands.values())
        self.params += [_root_url(), *(_option(*row, hidden=True) for row in _OPTIONS)]

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Parse the arguments; usage errors are printed with control characters escaped."""
        with _EscapedErrors():
            return super().make_context(*args, **extra)

    def resolve_command(self, ctx: Any, args: Any) -> Any:
        """Find the command; refuse options before it that it does not take."""
        found = super().resolve_command(ctx, args)
        _check_root_options(ctx, found[0], found[1])
        return found

    def invoke(self, ctx: Any) -> Any:
        """Run the command; usage errors are printed with control characters escaped."""
        with _EscapedErrors():
            try:
                return super().invoke(ctx)
            except BrokenPipeError:
                # Typer would make it exit code 1.
                forget_stdout()
                raise typer.Exit(0) from None


class _EscapedErrors(AbstractContextManager[None]):
    """Make typer print usage errors on our console, which escapes control characters.

    An argument may have been pasted from somewhere else. Typer creates its own console, and
    imports `rich_utils` only when there is an error to print.
    """

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if hasattr(error, "format_message"):
            from typer import rich_utils

            rich_utils.Console = console_class()  # type: ignore[attr-defined]


def _add_options(commands: Iterable[Any]) -> None:
    for command in commands:
        _add_options(getattr(command, "commands", {}).values())
        for one in command.params:
            if one.name in _TOPIC_PARAMETERS:
                one.callback = _complete
        slots = [slot for slot, one in enumerate(command.params) if one.name == "url"]
        for slot in slots:
            command.params[slot + 1 : slot + 1] = [_option(*row) for row in _OPTIONS]


# What these commands call topics and patterns.
_TOPIC_PARAMETERS = ("topic", "pattern", "dead_letter_topic")


def _complete(_context: typer.Context, _option: object, name: str | None) -> str | None:
    """Let `orders` mean `/default/orders`, in requests, in output and in questions alike."""
    return None if name is None else full_name(name)


def _option(option: str, variable: str, text: str, *, hidden: bool = False) -> TyperOption:
    return TyperOption(
        param_decls=[option],
        type=str,
        metavar="FILE",
        envvar=variable,
        show_envvar=True,
        help=text,
        # Known before the url is looked at, which takes it along; the command has no such argument.
        is_eager=True,
        expose_value=False,
        callback=_keep,
        rich_help_panel=_PANEL,
        hidden=hidden,
    )


# The URL that was typed before the command.
_ROOT_URL = "root url"


def _root_url() -> TyperOption:
    def keep(context: typer.Context, _option: TyperOption, url: str | None) -> None:
        context.meta[_ROOT_URL] = url

    return TyperOption(
        param_decls=["--url"],
        type=str,
        metavar="URL",
        help="The broker of the command; may also stand behind it.",
        expose_value=False,
        callback=keep,
    )


def _check_root_options(context: Any, name: str | None, command: Any) -> None:
    """Refuse `--url` and its like before a command that talks to no broker, or finds it itself."""
    given = ["--url"] if context.meta.get(_ROOT_URL) else sorted(context.meta.get(_TYPED, ()))
    if given and command is not None and not _takes_url(command):
        raise BadRequestError(f"`ister {name}` takes no {given[0]}: leave it out")


def _takes_url(command: Any) -> bool:
    subcommands = getattr(command, "commands", {}).values()
    return any(one.name == "url" for one in command.params) or any(map(_takes_url, subcommands))


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


# The options that were typed, and do not come from variables.
_TYPED = "typed"


def _keep(context: typer.Context, option: TyperOption, value: str | None) -> None:
    typed: set[str] = context.meta.setdefault(_TYPED, set())
    if _is_typed(context, option.name or ""):
        typed.add(option.opts[0])
    elif option.opts[0] in typed:
        return  # Before the command: that wins over a variable.
    context.meta[option.opts[0]] = value


def _token(path: str | None, *, is_flag: bool) -> "Token | None":
    from ister.client import token_file, token_from_environment

    return token_file(path) if path and is_flag else token_from_environment()


def _tls(url: str, given: Mapping[str, str | None], typed: set[str]) -> "Tls | None":
    from ister.client import Tls

    if not url.startswith("isters://"):
        # Variables are for all brokers, and mean nothing to one without TLS.
        if typed - {"--token-file"}:
            raise BadRequestError(
                "--tls-ca, --tls-cert and --tls-key are for TLS: write --url as isters://, or "
                "leave them out"
            )
        return None
    ca, cert, key = (given[option] or None for option in ("--tls-ca", "--tls-cert", "--tls-key"))
    if bool(cert) != bool(key):
        raise BadRequestError("--tls-cert and --tls-key belong together: give both, or none")
    return Tls(ca, cert, key) if ca or cert else None
