"""`ister namespaces`: list, create and delete namespaces."""

from typing import Annotated

import typer

from ister.cli.console.access import URL, UrlOption, connect
from ister.cli.console.terminal import JsonOption, YesOption, confirm, run, say, write, write_json

namespaces = typer.Typer(no_args_is_help=True, help="See, create and delete namespaces.")


@namespaces.command("list")
def list_namespaces(url: UrlOption = URL, as_json: JsonOption = False) -> None:
    """List the namespaces."""

    async def fetch() -> list[str]:
        async with connect(url) as client:
            return await client.namespaces()

    rows = run(fetch())
    if as_json:
        write_json(rows)
    else:
        write("".join(f"{name}\n" for name in rows).encode())


@namespaces.command("create")
def create_namespace(
    namespace: Annotated[str, typer.Argument(help="As team-a; its topics are /team-a/...")],
    url: UrlOption = URL,
) -> None:
    """Create a namespace.

    \b
    Example:
      ister namespaces create team-a
    """

    async def create() -> None:
        async with connect(url) as client:
            await client.create_namespace(namespace)

    run(create())
    say(f"namespace {namespace} is created")


@namespaces.command("delete")
def delete_namespace(
    namespace: Annotated[str, typer.Argument(help="One that has no topics any more.")],
    url: UrlOption = URL,
    yes: YesOption = False,
) -> None:
    """Delete a namespace that has no topics.

    \b
    Example:
      ister namespaces delete team-a
    """
    confirm(f"this deletes namespace {namespace}", yes=yes)

    async def delete() -> None:
        async with connect(url) as client:
            await client.delete_namespace(namespace)

    run(delete())
    say(f"namespace {namespace} is deleted")
