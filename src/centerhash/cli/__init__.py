"""The command line: one thin command per verb. What is slow is imported only inside the commands."""

from __future__ import annotations

from typing import Annotated

import typer

from centerhash.cli import console, experiments, info, photos, teaching, training
from centerhash.cli.arguments import SettingsCommand
from centerhash.core.version import __version__

app = typer.Typer(
    name="centerhash",
    help="Compact binary codes for multi-label images, learned around hash centers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"centerhash {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Compact binary codes for multi-label images, learned around hash centers."""


# in the order of the help
for command in (
    photos.serve,
    photos.search,
    photos.duplicates,
    info.inspect,
    training.train,
    training.evaluate,
    training.encode,
    training.explain,
    training.export,
    training.publish,
    info.methods,
    info.options,
    info.backbones,
    info.datasets,
    info.download,
    info.doctor,
    experiments.compare,
    experiments.tune,
):
    app.command(cls=SettingsCommand if command is training.train else None)(command)
photos.index_app.command()(teaching.teach)
photos.index_app.add_typer(teaching.taught_app, name="taught")
app.add_typer(photos.index_app, name="index")


def main() -> None:
    """Run the command line."""
    console.run(app, "centerhash")


if __name__ == "__main__":
    main()
