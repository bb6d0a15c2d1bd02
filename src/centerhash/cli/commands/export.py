"""Take a model elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from centerhash.cli import completion
from centerhash.cli.arguments import JsonOption, ModelArgument


def export(
    model: ModelArgument,
    out: Annotated[Path, typer.Option(help="file to write")],
    format: Annotated[
        str, typer.Option(help="of the file: onnx", autocompletion=completion.one_of("onnx"))
    ] = "onnx",
    int8: Annotated[bool, typer.Option("--int8", help="compute the backbone in 8 bits")] = False,
    calibration: Annotated[
        list[str] | None,
        typer.Option(
            help="images, folder or glob to compare on, and with --int8 to calibrate on [default: emoji scenes]"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a model as one file that runs without PyTorch: pixels in, logits and packed codes out.

    Its codes are compared with PyTorch's first; a file whose codes differ is not written.

    Example: `centerhash export run --out model.onnx`
    """
    from centerhash.cli import console
    from centerhash.export import export_model
    from centerhash.model import HashModel

    with console.progress() as progress:
        done = export_model(
            HashModel.load(model), out, format=format, int8=int8, images=calibration, progress=progress
        )
    if as_json:
        console.print_json(done.to_dict())
        return
    for line in done.lines():
        console.out.print(line, soft_wrap=True)
