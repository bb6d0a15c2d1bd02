"""The command line: one thin command per verb. What is slow is imported only inside the commands."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Annotated

import typer

from centerhash.cli.arguments import with_flags
from centerhash.cli.commands import (
    catalogue,
    duplicates,
    experiments,
    export,
    index,
    inspect,
    serve,
    training,
)
from centerhash.core.errors import CenterhashError
from centerhash.core.rendering import visible
from centerhash.core.version import __version__

app = typer.Typer(
    name="centerhash",
    help="Compact binary codes for multi-label images, learned around hash centers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

# what standard output that is a file or a pipe may fail with
_UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)


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


# in the order of the help: from the first look to the own images
for command in (
    experiments.demo,
    experiments.scenes,
    inspect.inspect,
    training.train,
    training.evaluate,
    training.encode,
    training.explain,
    export.export,
    export.publish,
    index.search,
    duplicates.duplicates,
    serve.serve,
    catalogue.methods,
    catalogue.options,
    catalogue.backbones,
    catalogue.datasets,
    catalogue.download,
    catalogue.doctor,
    experiments.compare,
    experiments.tune,
    experiments.reproduce,
):
    app.command()(command)
app.add_typer(index.index_app, name="index")


def main() -> None:
    """Run the command line: errors of ours end with exit code 2 and one message, never a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names need not be text, nor has every terminal "█"
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            app(prog_name="centerhash")
        finally:
            sys.stdout.flush()  # what cannot be written is said here, not by Python when it ends
    except CenterhashError as error:
        print(f"error: {visible(with_flags(str(error)))}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        if error.errno not in _UNWRITTEN or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python tries again when it ends
        print(f"error: cannot write the output: {os.strerror(error.errno)}.", file=sys.stderr)
        raise SystemExit(2) from None
    except SystemExit as ended:
        if ended.code == 130:  # what typer makes of an interrupt
            print("interrupted: the same command resumes where it stopped.", file=sys.stderr)
        raise


if __name__ == "__main__":
    main()
