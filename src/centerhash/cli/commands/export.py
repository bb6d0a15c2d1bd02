"""Take a model elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from centerhash.cli import console
from centerhash.cli.arguments import JsonOption, ModelArgument, option


def export(
    model: ModelArgument,
    out: Annotated[Path, typer.Option(help="file to write")],
    format: Annotated[str, option("of the file", ("onnx",))] = "onnx",
    int8: Annotated[bool, typer.Option("--int8", help="compute the backbone in 8 bits")] = False,
    calibration: Annotated[
        list[str] | None,
        option(
            "images, folder or glob to compare on, and with --int8 to calibrate on",
            default="four sample photos",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a model as one file that runs without PyTorch: pixels in, logits and packed codes out.

    Its codes are compared with PyTorch's first; a file whose codes differ is not written.

    Example: `centerhash export run --out model.onnx`
    """
    from centerhash.model.export import export_model
    from centerhash.model.model import HashModel

    with console.progress() as progress:
        done = export_model(
            HashModel.load(model), out, format=format, int8=int8, images=calibration, progress=progress
        )
    if as_json:
        console.print_json(done.to_dict())
        return
    for line in done.lines():
        console.say(line)


def publish(
    run: Annotated[Path, typer.Argument(help="folder of a finished run, or of a model")],
    repository: Annotated[str, typer.Argument(help="where to: owner/name on the Hugging Face hub")],
    licence: Annotated[
        str | None, typer.Option(help="of the model, as the hub names it, such as apache-2.0")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="make a new repository private")] = False,
) -> None:
    """Upload a model to the Hugging Face hub, with a card of its data, command, figures and labels.

    Example: `centerhash publish run jane/photos-64 --licence apache-2.0`
    """
    from centerhash.encoding.code_files import DATABASE, evaluate_codes_of, read_run_codes
    from centerhash.model.model import HashModel

    model, found = HashModel.load(run), None
    if (run / DATABASE).exists():
        query, database = read_run_codes(run)
        if query.labels is not None:  # a training without labels has nothing to score by
            found = evaluate_codes_of(query, database)
    address = model.push_to_hub(repository, evaluation=found, license=licence, private=private or None)
    console.say(f"published: {address}")
    console.say(f'anyone who may read it opens it by `centerhash.load("hf:{repository}")`')
