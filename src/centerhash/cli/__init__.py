"""The command line: one thin command per verb. What is slow is imported only inside the commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from centerhash.cli import console, experiments, info, photos, teaching, training
from centerhash.cli.arguments import GridCommand, SettingsCommand
from centerhash.core.version import __version__

# the panels of the help, in its order
PANELS: dict[str, tuple[Any, ...]] = {
    "Search photos": (
        photos.serve,
        photos.index_app,
        photos.search,
        photos.duplicates,
        training.explain,
        photos.mcp,
    ),
    "Train": (
        info.inspect,
        training.train,
        training.evaluate,
        training.encode,
        training.export,
        training.publish,
    ),
    "Experiments": (experiments.compare, experiments.tune),
    "Info": (info.methods, info.options, info.backbones, info.datasets, info.download, info.doctor),
}
# commands with the settings of training as options
SETTINGS: dict[Any, type[SettingsCommand]] = {
    training.train: SettingsCommand,
    experiments.compare: GridCommand,
    experiments.tune: GridCommand,
}


def _name(command: Any) -> str:
    return "index" if command is photos.index_app else str(command.__name__)


class _Ordered(TyperGroup):
    """The commands in the order of PANELS; Typer itself puts groups such as `index` last."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All names."""
        return [_name(command) for commands in PANELS.values() for command in commands]


app = typer.Typer(
    name="centerhash",
    cls=_Ordered,
    help="Search your photos by what they show, and train the models that make it possible.",
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
    """Search your photos by what they show, and train the models that make it possible."""


photos.index_app.command()(teaching.teach)
photos.index_app.add_typer(teaching.taught_app, name="taught")
for panel, commands in PANELS.items():
    for command in commands:
        if command is photos.index_app:
            app.add_typer(command, name=_name(command), rich_help_panel=panel)
        else:
            kind = SETTINGS.get(command)
            app.command(cls=kind, rich_help_panel=panel)(command)


def main() -> None:
    """Run the command line."""
    console.run(app, "centerhash")


if __name__ == "__main__":
    main()
