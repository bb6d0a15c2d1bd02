"""Arguments and options that several commands take, each defined once; words that are more than a number or a path."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from centerhash.cli import completion
from centerhash.core.errors import ConfigError


def option(
    help: str,
    words: Sequence[str] | Callable[..., Any] = (),
    *,
    panel: str | None = None,
    default: str = "",
    name: str | None = None,
    min: int | None = None,
) -> Any:
    """An option in a group (`panel`) of the help; `words` are all that it takes, or complete what it takes.

    `default` is shown where the default itself is None, `name` is the flag where it is not made from the parameter.
    """
    shown = help if callable(words) or not words else f"{help}: {', '.join(words)}"
    return typer.Option(
        *([] if name is None else [name]),
        help=f"{shown} [default: {default}]" if default else shown,
        autocompletion=words if callable(words) else completion.one_of(*words) if words else None,
        rich_help_panel=panel,
        min=min,
    )


training, head, network, source, running = (
    partial(option, panel=panel) for panel in ("Training", "Head", "Backbone", "Data", "Running")
)

ModelArgument = Annotated[str, typer.Argument(help="the model: folder of a finished run, or hf:owner/name")]
RootOption = Annotated[Path, typer.Option(help="folder with one folder per published data set")]
MarkdownOption = Annotated[bool, typer.Option("--markdown", help="print this list as a page of the docs")]
JsonOption = Annotated[bool, typer.Option("--json", help="print json for machines instead of a table")]
EngineOption = Annotated[
    str,
    option("what runs the network: auto (the fastest here), torch, onnx, openvino", completion.engines),
]
DeviceOption = Annotated[
    str,
    option(
        "auto (the GPU where there is one), cpu, cuda, cuda:1, mps",
        completion.one_of("auto", "cpu", "cuda", "mps"),
    ),
]
CacheOption = Annotated[
    Path | None, running("folder of the feature cache", default="$CENTERHASH_CACHE or ~/.cache")
]
SkipBrokenOption = Annotated[bool, source("leave out images that cannot be read", name="--skip-broken")]
NoLabelsOption = Annotated[
    bool, source("take all images at any depth, whatever is known of them", name="--no-labels")
]

# of compare, tune and reproduce
MethodsOption = Annotated[str, option("all, or names such as csq,ics", completion.method_lists)]
BitsOption = Annotated[str, typer.Option(help="lengths of the codes")]
SeedsOption = Annotated[int, typer.Option(min=1, help="trainings of each, with seeds 0, 1, ...")]
EpochsOption = Annotated[int | None, training("of every training", default="train's")]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="METHOD:NAME=VALUE, e.g. ics:lambda=0.2", rich_help_panel="Training"),
]
ValidationOption = Annotated[
    bool,
    source("hold out a quarter of the training images: choose settings only there", name="--validation"),
]
DepthOption = Annotated[
    int, typer.Option("-k", "--top", min=1, help="depth of mAP: how many results of a query count")
]
JobsOption = Annotated[int, running("trainings at the same time, sharing the cpu_count", min=1)]

# parameters that messages of the library name as `name=value`, and that are options here
FLAGS = frozenset(
    "allow_host backbone bits cache crop device engine exclude exclude_self finetune host int8 jobs labels logger "  # noqa: SIM905
    "learning_rate lists methods mirror option out overwrite pool port pretrained ray_address read_only results root "
    "database_labels query_labels runner seeds "
    "skip_broken test_images token validation watch weights".split()
)
_PARAMETER = re.compile(r"`([a-z_0-9]+)=([^`]*)`|\b([a-z_0-9]+)=(True|False)\b")


def with_flags(text: str) -> str:
    """Write the parameters that a message of the library names as the options of the command line.

    `skip_broken=True` becomes --skip-broken, `pretrained=False` --no-pretrained, `device="cpu"` --device cpu, and
    `out=` --out. A bare `bits` may be anything, such as an array of a file, and stays.
    """

    def flag(found: re.Match[str]) -> str:
        name, value = found[1] or found[3], (found[2] if found[1] else found[4]).strip('"')
        if name not in FLAGS:
            return found[0]
        words = f"no-{name}" if value == "False" else name
        return f"--{words.replace('_', '-')} {'' if value in ('True', 'False') else value}".rstrip()

    return _PARAMETER.sub(flag, text)


def read_pairs(texts: Sequence[str]) -> dict[str, str]:
    """Read NAME=VALUE texts."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--option takes NAME=VALUE, got '{text}'. See `centerhash options METHOD`.")
        pairs[name.strip()] = value.strip()
    return pairs


def read_widths(text: str) -> tuple[int, ...]:
    """Read the widths of hidden layers: "2048,512", or "0" for none."""
    try:
        widths = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--hidden takes widths such as 1024 or 2048,512, or 0, got '{text}'.") from None
    if widths == (0,):
        return ()
    if min(widths) < 1:
        raise ConfigError(f"--hidden takes widths of at least 1, or a single 0 for none, got '{text}'.")
    return widths


def stands_alone(context: typer.Context, flag: str) -> None:
    """Refuse everything beside an option that stands alone, rather than ignore it."""
    given = [
        parameter.opts[0] if parameter.param_type_name == "option" else parameter.name.upper()
        for parameter in context.command.params
        if parameter.name is not None and flag not in parameter.opts
        if getattr(context.get_parameter_source(parameter.name), "name", "") == "COMMANDLINE"
    ]
    if given:
        raise ConfigError(f"{flag} stands alone: leave out {', '.join(given)}.")
