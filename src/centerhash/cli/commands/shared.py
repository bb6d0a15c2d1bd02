"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DeviceOption = Annotated[str, typer.Option(help="auto (the GPU where there is one), cpu, cuda, cuda:1, mps")]
InferenceOption = Annotated[
    str,
    typer.Option("--engine", help="that runs the network: auto (the fastest here), torch, onnx, openvino"),
]
CacheOption = Annotated[
    Path | None, typer.Option(help="folder of the feature cache [default: $CENTERHASH_CACHE or ~/.cache]")
]
JsonOption = Annotated[bool, typer.Option("--json", help="print json for machines instead of a table")]
SkipBrokenOption = Annotated[bool, typer.Option(help="leave out images that cannot be read")]
