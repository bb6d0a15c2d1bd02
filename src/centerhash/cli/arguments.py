"""Arguments and options of several commands, their shell completion, and readers of their texts.

Completion runs at every press of the tab key: nothing here imports torch. Typer itself keeps the words that start with
what was typed; if none does, the shell offers files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args

import typer
from typer.core import TyperCommand
from typer.main import get_command

from centerhash.core.errors import ConfigError, unknown_name

# Completion

Completion: TypeAlias = Callable[..., list[str]]

# importing the modules that define these takes seconds; tests keep both equal
FORMATS = ("npz", "parquet")
RUNNERS = ("local", "ray")


def one_of(*words: str) -> Completion:
    """Complete one of a few fixed words."""
    return lambda: list(words)


def name_in(table: str, *more: str) -> Completion:
    """Complete a name of a table, such as "networks.engines:ENGINES", which is imported only then."""
    module, _, attribute = table.partition(":")
    return lambda: [*more, *getattr(import_module(f"centerhash.{module}"), attribute)]


complete_methods = name_in("methods.registry:METHODS")
complete_backbones = name_in("networks.backbones:BACKBONES", "timm:")
complete_engines = name_in("networks.engines:ENGINES", "auto")
complete_datasets = name_in("data.published.catalogue:DATASETS")


def complete_presets() -> list[str]:
    """Complete a preset of training."""
    from centerhash.training.presets import preset_names

    return preset_names()


def complete_method_list(incomplete: str) -> list[str]:
    """Complete the last method of a list such as csq,ics."""
    *earlier, _ = incomplete.split(",")
    prefix = "".join(f"{name}," for name in earlier)
    names = [prefix + name for name in complete_methods() if name not in earlier]
    return names if earlier else ["all", *names]


def complete_data(incomplete: str) -> list[str]:
    """Complete a dataset to train on: a folder here, or the name of a published one."""
    head, slash, _ = incomplete.rpartition("/")
    parent = Path(head + slash).expanduser()
    entries = sorted(parent.iterdir()) if parent.is_dir() else []
    folders = [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    return [*complete_datasets(), *(head + slash + name for name in folders)]


# Options


def option(
    help: str,
    words: Sequence[str] | Completion = (),
    *,
    panel: str | None = None,
    default: str = "",
    min: int | None = None,
) -> Any:
    """Return an option in a panel of the help; `words` are its allowed values, or complete them.

    `default` is shown if the default itself is None.
    """
    text = help if callable(words) or not words else f"{help}: {', '.join(words)}"
    return typer.Option(
        help=f"{text} [default: {default}]" if default else text,
        autocompletion=words if callable(words) else one_of(*words) if words else None,
        rich_help_panel=panel,
        min=min,
    )


def flag(name: str, help: str, panel: str | None = None) -> Any:
    """Return an option without a value."""
    return typer.Option(name, help=help, rich_help_panel=panel)


ModelArgument = Annotated[str, typer.Argument(help="the model: folder of a finished run, or hf:owner/name")]
RootOption = Annotated[Path, typer.Option(help="folder with one folder per published dataset")]
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
KOption = Annotated[int, typer.Option("-k", "--top", min=1, help="number of results")]
ByOption = Annotated[
    str | None,
    option(
        "codes to compare",
        ("semantic", "general", "both"),
        default="both if there are general codes",
    ),
]
WithinOption = Annotated[int | None, typer.Option(min=0, help="maximum Hamming distance of the results")]
HavingOption = Annotated[list[str] | None, typer.Option(help="only items with this label; may be repeated")]
WithoutOption = Annotated[
    list[str] | None, typer.Option(help="exclude items with this label; may be repeated")
]
CacheOption = Annotated[
    Path | None, option("feature cache", panel="Running", default="$CENTERHASH_CACHE or ~/.cache/centerhash")
]
SkipBrokenOption = Annotated[bool, flag("--skip-broken", "skip broken images", "Data")]
NoLabelsOption = Annotated[
    bool, flag("--no-labels", "use images at any depth and ignore their labels", "Data")
]

# Of train, compare and tune.

DataArgument: Any = typer.Argument(
    help="folder of a dataset, or with --root a name of `centerhash datasets`", autocompletion=complete_data
)
NamedRootOption = Annotated[Path | None, option("folder of the published dataset named DATA", panel="Data")]
ListsOption = Annotated[
    Path | None, option("folder of train.txt, test.txt, database.txt: 'path 0 1 0 ...'", panel="Data")
]

# Of compare and tune.

MethodsOption = Annotated[str, option("all, or names such as csq,ics", complete_method_list)]
BitsOption = Annotated[str, typer.Option(help="lengths of the codes")]
EpochsOption = Annotated[int | None, option("epochs of every training run", default="train's")]
SeedsOption = Annotated[int, typer.Option(min=1, help="number of runs per setting, with seeds 0, 1, ...")]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="METHOD:NAME=VALUE, e.g. ics:lambda=0.2", rich_help_panel="Training"),
]
ValidationOption = Annotated[
    bool, flag("--validation", "score on a held-out quarter of the training images", "Data")
]
DepthOption = Annotated[int, typer.Option("-k", "--top", min=1, help="depth k of mAP@k")]
JobsOption = Annotated[int, option("runs at the same time, sharing the CPUs", panel="Running", min=1)]

# Options of training, from the fields of its configuration

PANELS = (None, "Training", "Head", "Backbone", "Data", "Running")
# Settings that accept several values with commas.
_SEVERAL = ("bits",)
_COMPLETED = {"method": complete_methods, "backbone": complete_backbones}


class SettingsCommand(TyperCommand):
    """A command with an option for every setting of training; its `context.obj` holds those that were passed.

    The options are built when this command runs: the classes of the settings take long to import.
    """

    # Settings without an option.
    omitted: tuple[str, ...] = ()

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters in the order of the help's panels, required ones first."""
        declared: list[Any] = super().get_params(ctx)
        required = [one for one in declared if one.required]
        parameters = [*required, *self._settings(), *(one for one in declared if not one.required)]
        return sorted(parameters, key=lambda one: PANELS.index(getattr(one, "rich_help_panel", None)))

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        values = {one.name: ctx.params.pop(one.name) for one in self._settings()}
        ctx.obj = {name: value for name, value in values.items() if value is not None}
        return super().invoke(ctx)

    def _settings(self) -> list[Any]:
        return [one for one in _setting_options() if one.name not in self.omitted]


class GridCommand(SettingsCommand):
    """A command that trains methods x bits x seeds with the same settings; it measures nothing during training."""

    omitted = ("method", "bits", "seed", "eval_interval")


@cache
def _setting_options() -> list[Any]:
    """Return options for the fields of TrainConfig and HeadOptions that are a `setting`."""
    from centerhash.networks.head_options import HeadOptions
    from centerhash.training.config import TrainConfig

    parameters = []
    for kind in (TrainConfig, HeadOptions):
        for name, field in kind.model_fields.items():
            extra: Any = field.json_schema_extra
            if extra is None:
                continue
            setting = option(
                field.description or "",
                _COMPLETED.get(name) or extra["choices"],
                panel=extra["panel"] or None,
                default=extra["shown"] or str(field.default),
            )
            types = get_args(field.annotation) or (field.annotation,)
            plain: Any = next((kind for kind in types if kind in (bool, int, float)), str)
            annotation: Any = Annotated[(str if name in _SEVERAL else plain) | None, setting]
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

    def flag(match: re.Match[str]) -> str:
        name, value = match[1].replace("_", "-"), match[2].strip('"')
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
            raise ConfigError(f"--option must be NAME=VALUE, got '{text}'. See `centerhash methods METHOD`.")
        pairs[name.strip()] = value.strip()
    return pairs


def read_training(options: Mapping[str, Any]) -> dict[str, Any]:
    """Read the options of a `SettingsCommand` as settings of training, those of the head in `head`."""
    from centerhash.networks.head_options import HeadOptions

    settings = dict(options)
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
    """Return the parts of a list with commas, each once."""
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
_FIXED = (
    "method",
    "bits",
    "seed",
    "eval_interval",
    "backbone",
    "weights",
    "pretrained",
    "crop",
    "pool",
    "options",
)


def read_settings(texts: Iterable[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read settings per method from METHOD:NAME=VALUE texts: options of the method, or of training.

    `all` stands for every method of the grid; training settings such as learning_rate or head are read as json.
    """
    from centerhash.methods.registry import get_method
    from centerhash.training.config import TrainConfig

    settings: dict[str, dict[str, Any]] = {}
    for text in texts:
        left, equals, value = (part.strip() for part in text.partition("="))
        # A method may be file.py:Class.
        method, colon, name = (part.strip() for part in left.rpartition(":"))
        if not (colon and equals and method and name):
            raise ConfigError(f"--option must be METHOD:NAME=VALUE, such as ics:lambda=0.2, got '{text}'.")
        for target in methods if method == "all" else [method]:
            if target not in methods:
                allowed = [*methods, "all"]
                raise unknown_name("method in --option", target, allowed, "It must be in --methods.")
            training = [known for known in TrainConfig.model_fields if known not in _FIXED]
            options = get_method(target).option_names()
            values = settings.setdefault(target, {})
            if name in options:
                values.setdefault("options", {})[name] = value
            elif name in training:
                try:
                    values[name] = json.loads(value)
                except ValueError:
                    values[name] = value
            else:
                allowed = [*options, *training]
                raise unknown_name(f"option of method '{target}' or of training", name, allowed)
    return settings
