"""The command line: one thin command per verb. Slow modules are imported only inside the commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from centerhash.cli import console, experiments, info, training
from centerhash.cli.arguments import GridCommand, SettingsCommand
from centerhash.cli.index import index_app
from centerhash.cli.photos import photos_app
from centerhash.cli.serve import serve
from centerhash.core.version import __version__

# The help lists panels and commands in this order.
PANELS: dict[str, tuple[Any, ...]] = {
    "Search": (index_app, photos_app, serve, training.explain),
    "Train": (
        info.inspect,
        training.train,
        training.evaluate,
        training.encode,
        training.export,
        training.publish,
    ),
    "Experiments": (experiments.compare, experiments.tune),
    "Info": (info.methods, info.backbones, info.datasets, info.download, info.doctor),
}
# These commands have the settings of training as options.
SETTINGS: dict[Any, type[SettingsCommand]] = {
    training.train: SettingsCommand,
    experiments.compare: GridCommand,
    experiments.tune: GridCommand,
}


class _Ordered(TyperGroup):
    """A group that lists commands in the order of PANELS, which begins with the groups; Typer itself puts these last."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return sorted(self.commands, key=lambda name: not isinstance(self.commands[name], TyperGroup))


app = typer.Typer(
    name="centerhash",
    cls=_Ordered,
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
    """Learn short binary codes from embeddings or images with labels, and search them exactly."""


for panel, commands in PANELS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(command, rich_help_panel=panel)
        else:
            app.command(cls=SETTINGS.get(command), rich_help_panel=panel)(command)


def main() -> None:
    """Run the command line."""
    console.run(app, "centerhash")


if __name__ == "__main__":
    main()
