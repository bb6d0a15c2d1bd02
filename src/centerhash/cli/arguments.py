"""Arguments and options of several commands, their shell completion, and readers of their texts.

Completion runs at every press of the tab key: nothing here imports torch. Typer itself keeps the words that start with
what was typed; if none does, the shell offers files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args

import typer
from typer.core import TyperCommand
from typer.main import get_command

from centerhash.core.errors import ConfigError, unknown_name

# Completion

Words: TypeAlias = list[tuple[str, str]]  # a word, and its meaning

# importing the modules that define these takes seconds; tests keep both equal
STORES = ("sqlite", "milvus")
FORMATS = ("npz", "npy", "parquet", "faiss", "pgvector")
RUNNERS = ("local", "ray")
LOGGERS = ("csv", "tensorboard", "wandb", "mlflow")


def one_of(*words: str) -> Callable[[], list[str]]:
    """Complete one of a few fixed words."""
    return lambda: list(words)


def complete_methods() -> Words:
    """All methods, without their titles, which stand next to the losses and need torch."""
    from centerhash.methods.registry import METHODS

    return [(name, "") for name in METHODS]  # titles would import torch


def complete_method_list(incomplete: str) -> Words:
    """Methods in a list such as csq,ics: the last one is completed, those before it are not offered again."""
    *before, _ = incomplete.split(",")
    start = "".join(f"{name}," for name in before)
    every = [] if before else [("all", "all methods")]
    return every + [(start + name, title) for name, title in complete_methods() if name not in before]


def complete_backbones() -> Words:
    """The backbones by name, and the prefix of timm's."""
    from centerhash.networks.backbones import BACKBONES

    rows = [(row.name, f"{row.features} features, {row.megabytes} MB") for row in BACKBONES.values()]
    return [*rows, ("timm:", "any network of timm, by its name there")]


def complete_engines() -> Words:
    """The engines that can run the network."""
    from centerhash.networks.engines import ENGINES

    return [("auto", "the fastest here"), *((row.name, row.title) for row in ENGINES.values())]


def complete_presets() -> list[str]:
    """The presets of training."""
    from centerhash.training.presets import preset_names

    return preset_names()


def complete_datasets() -> Words:
    """The published datasets."""
    from centerhash.data.published.catalogue import DATASETS

    return [(row.name, row.title) for row in DATASETS.values()]


def complete_data(incomplete: str) -> Words:
    """A dataset to train on: a folder here, or the name of a published one."""
    head, slash, _ = incomplete.rpartition("/")
    place = Path(head + slash).expanduser()
    folders = sorted(path.name for path in place.iterdir() if path.is_dir()) if place.is_dir() else []
    visible = [name for name in folders if not name.startswith(".")]
    return [*complete_datasets(), *((head + slash + name, "folder") for name in visible)]


# Options


def option(
    help: str,
    words: Sequence[str] | Callable[..., Any] = (),
    *,
    panel: str | None = None,
    default: str = "",
    name: str | None = None,
    min: int | None = None,
) -> Any:
    """An option in a panel of the help; `words` are its allowed values, or complete them.

    `default` is shown if the default itself is None; `name` is the flag if it is not made from the parameter.
    """
    shown = help if callable(words) or not words else f"{help}: {', '.join(words)}"
    return typer.Option(
        *([] if name is None else [name]),
        help=f"{shown} [default: {default}]" if default else shown,
        autocompletion=words if callable(words) else one_of(*words) if words else None,
        rich_help_panel=panel,
        min=min,
    )


ModelArgument = Annotated[str, typer.Argument(help="the model: folder of a finished run, or hf:owner/name")]
RootOption = Annotated[Path, typer.Option(help="folder with one folder per published dataset")]
MarkdownOption = Annotated[bool, typer.Option("--markdown", help="print a page of the docs")]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]
EngineOption = Annotated[
    str,
    option(
        "engine that runs the network: auto (the fastest installed), torch, onnx, openvino", complete_engines
    ),
]
DeviceOption = Annotated[
    str,
    option(
        "device of PyTorch: auto (the GPU if there is one), cpu, cuda, cuda:1, mps",
        one_of("auto", "cpu", "cuda", "mps"),
    ),
]
CacheOption = Annotated[
    Path | None,
    option(
        "folder of the feature cache", panel="Running", default="$CENTERHASH_CACHE or ~/.cache/centerhash"
    ),
]
SkipBrokenOption = Annotated[
    bool, option("skip images that cannot be read", panel="Data", name="--skip-broken")
]
NoLabelsOption = Annotated[
    bool, option("use all images at any depth and ignore their labels", panel="Data", name="--no-labels")
]

# of train, compare and tune
DataArgument: Any = typer.Argument(
    help="folder of a dataset, or with --root a name of `centerhash datasets`", autocompletion=complete_data
)
NamedRootOption = Annotated[Path | None, option("folder of the published dataset named DATA", panel="Data")]
ListsOption = Annotated[
    Path | None, option("folder of train.txt, test.txt, database.txt: 'path 0 1 0 ...'", panel="Data")
]

# of compare and tune
MethodsOption = Annotated[str, option("all, or names such as csq,ics", complete_method_list)]
BitsOption = Annotated[str, typer.Option(help="lengths of the codes")]
SeedsOption = Annotated[
    int, typer.Option(min=1, help="number of training runs per setting, with seeds 0, 1, ...")
]
EpochsOption = Annotated[
    int | None, option("epochs of every training run", panel="Training", default="train's")
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="METHOD:NAME=VALUE, e.g. ics:lambda=0.2", rich_help_panel="Training"),
]
ValidationOption = Annotated[
    bool,
    option(
        "score on a held-out quarter of the training images",
        panel="Data",
        name="--validation",
    ),
]
DepthOption = Annotated[int, typer.Option("-k", "--top", min=1, help="depth k of mAP@k")]
JobsOption = Annotated[
    int, option("training runs at the same time, sharing the CPUs", panel="Running", min=1)
]

# Options of training, from the fields of its configuration

PANELS = (None, "Training", "Head", "Backbone", "Data", "Running")
_SEVERAL = ("bits",)  # settings that accept several values with commas
_COMPLETED = {"method": complete_methods, "backbone": complete_backbones}


class SettingsCommand(TyperCommand):
    """A command with an option for every setting of training; `context.obj` holds those that were given.

    The options are built when this command runs: the classes of the settings take long to import.
    """

    omitted: tuple[str, ...] = ()  # settings without an option

    def get_params(self, ctx: Any) -> list[Any]:
        """All parameters, in the order of the help's panels."""
        own: list[Any] = super().get_params(ctx)
        found = [one for one in own if one.required] + self._settings()
        found += [one for one in own if not one.required]
        order = {panel: place for place, panel in enumerate(PANELS)}
        return sorted(found, key=lambda one: order[getattr(one, "rich_help_panel", None)])

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        values = {one.name: ctx.params.pop(one.name) for one in self._settings()}
        ctx.obj = {name: value for name, value in values.items() if value is not None}
        return super().invoke(ctx)

    def _settings(self) -> list[Any]:
        return [one for one in _setting_options() if one.name not in self.omitted]


class GridCommand(SettingsCommand):
    """A command that trains methods x bits x seeds with the same settings; it measures nothing during training."""

    omitted = ("method", "bits", "seed", "watch")


@cache
def _setting_options() -> list[Any]:
    """Options for the fields of TrainConfig and HeadOptions that are a `setting`."""
    from centerhash.networks.head_options import HeadOptions
    from centerhash.training.config import TrainConfig

    parameters = []
    for kind in (TrainConfig, HeadOptions):
        for name, field in kind.model_fields.items():
            extra: Any = field.json_schema_extra
            if extra is None:
                continue
            made = option(
                field.description or "",
                _COMPLETED.get(name) or extra["choices"],
                panel=extra["panel"] or None,
                default=extra["shown"] or str(field.default),
            )
            types = get_args(field.annotation) or (field.annotation,)
            plain: Any = next((kind for kind in types if kind in (bool, int, float)), str)
            plain = str if name in _SEVERAL else plain
            annotation: Any = Annotated[plain | None, made]
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation))

    def settings() -> None: ...

    settings.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(settings)
    return get_command(app).params


# Texts


_PARAMETER = re.compile(r"`([a-z_0-9]+)=([^`]*)`")


def with_flags(text: str) -> str:
    """Write parameters that a message of the library names in backticks as options of the command line.

    `skip_broken=True` becomes --skip-broken, `pretrained=False` --no-pretrained, `device="cpu"` --device cpu, and
    `out=` --out.
    """

    def flag(found: re.Match[str]) -> str:
        name, value = found[1].replace("_", "-"), found[2].strip('"')
        if value in ("True", "False"):
            return f"--{'' if value == 'True' else 'no-'}{name}"
        return f"--{name} {value}".rstrip()

    return _PARAMETER.sub(flag, text)


def read_pairs(texts: Sequence[str]) -> dict[str, str]:
    """Read NAME=VALUE texts."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--option must be NAME=VALUE, got '{text}'. See `centerhash options METHOD`.")
        pairs[name.strip()] = value.strip()
    return pairs


def read_training(given: Mapping[str, Any]) -> dict[str, Any]:
    """Read the options of a `SettingsCommand` as settings of training, those of the head in `head`."""
    from centerhash.networks.head_options import HeadOptions

    settings = dict(given)
    if "hidden" in settings:
        settings["hidden"] = read_widths(settings["hidden"])
    head = {name: settings.pop(name) for name in HeadOptions.model_fields if name in settings}
    return {**settings, "head": head} if head else settings


def read_widths(text: str) -> tuple[int, ...]:
    """Read the widths of hidden layers: "2048,512", or "0" for none."""
    try:
        widths = tuple(int(part) for part in text.split(","))
    except ValueError:
        widths = (-1,)
    if widths == (0,):
        return ()
    if min(widths) < 1:
        raise ConfigError(f"--hidden must be widths such as 1024 or 2048,512, or 0 for none, got '{text}'.")
    return widths


def _listed(text: str) -> list[str]:
    """The parts of a list with commas, each once."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def read_methods(text: str) -> list[str]:
    """Read names of methods: `all` or `csq,ics`."""
    from centerhash.methods.registry import METHODS, get_method

    names = list(METHODS) if text.strip() == "all" else _listed(text)
    for name in names:
        get_method(name)
    if not names:
        raise ConfigError("nothing to compare: --methods is empty. Give for example --methods csq,ics.")
    return names


def read_bits(text: str) -> list[int]:
    """Read lengths of codes: `16,32,64`."""
    try:
        bits = [int(part) for part in _listed(text)]
    except ValueError:
        bits = []
    if not bits:
        raise ConfigError(f"--bits must be lengths of codes such as 16,32,64, got '{text}'.")
    return bits


# chosen by the grid itself, or the same for all methods: they share the features of one network
_FIXED = ("method", "bits", "seed", "watch", "backbone", "weights", "pretrained", "crop", "pool", "options")


def read_settings(texts: Iterable[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read settings per method from METHOD:NAME=VALUE texts: options of the method, or of training.

    `all` stands for every method of the grid; training settings such as learning_rate or head are read as json.
    """
    from centerhash.core.options import option_names
    from centerhash.methods.registry import get_method
    from centerhash.training.config import TrainConfig

    settings: dict[str, dict[str, Any]] = {}
    for text in texts:
        left, equals, value = (part.strip() for part in text.partition("="))
        method, colon, name = (part.strip() for part in left.rpartition(":"))  # a method may be file.py:Class
        if not (colon and equals and method and name):
            raise ConfigError(f"--option must be METHOD:NAME=VALUE, such as ics:lambda=0.2, got '{text}'.")
        for target in methods if method == "all" else [method]:
            if target not in methods:
                allowed = [*methods, "all"]
                raise unknown_name("method in --option", target, allowed, "It must be in --methods.")
            training = [known for known in TrainConfig.model_fields if known not in _FIXED]
            options = option_names(get_method(target).options_class())
            chosen = settings.setdefault(target, {})
            if name in options:
                chosen.setdefault("options", {})[name] = value
            elif name in training:
                try:
                    chosen[name] = json.loads(value)
                except ValueError:
                    chosen[name] = value
            else:
                allowed = [*options, *training]
                raise unknown_name(f"option of method '{target}' or of training", name, allowed)
    return settings


def stands_alone(context: typer.Context, flag: str) -> None:
    """Reject everything beside an option that stands alone, rather than ignore it."""
    given = [
        parameter.opts[0] if parameter.param_type_name == "option" else parameter.name.upper()
        for parameter in context.command.get_params(context)
        if parameter.name is not None and flag not in parameter.opts
        if getattr(context.get_parameter_source(parameter.name), "name", "") == "COMMANDLINE"
    ]
    if given:
        raise ConfigError(f"{flag} stands alone: omit {', '.join(given)}.")
