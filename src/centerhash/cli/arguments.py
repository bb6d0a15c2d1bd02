"""Arguments and options of several commands, their shell completion, and readers of their texts.

Completion runs at every press of the tab key, so this module does not import torch. Typer itself keeps the words that
start with the typed letters; if none does, the shell offers files.
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

Completion: TypeAlias = Callable[[], list[str]]

# Importing the modules that define these takes seconds; a test compares both.
FORMATS = ("npz", "parquet")
RUNNERS = ("local", "ray")


def one_of(*words: str) -> Completion:
    """Return the completion of one of a few fixed words."""
    return lambda: list(words)


def name_in(table: str, *words: str) -> Completion:
    """Return the completion of fixed words and names of a table, such as "networks.engines:ENGINES", imported then."""
    module, _, attribute = table.partition(":")
    return lambda: [*words, *getattr(import_module(f"centerhash.{module}"), attribute)]


complete_methods = name_in("methods.registry:METHODS")
complete_backbones = name_in("networks.backbones:BACKBONES", "timm:")
complete_engines = name_in("networks.engines:ENGINES", "auto")
complete_datasets = name_in("data.published:DATASETS")


def complete_presets() -> list[str]:
    """Return the names of the presets of training."""
    return import_module("centerhash.training.presets").preset_names()  # type: ignore[no-any-return]


def option(
    help: str,
    words: Sequence[str] | Completion = (),
    *,
    panel: str | None = None,
    default: str = "",
    min: int | None = None,
) -> Any:
    """Return an option in a panel of the help; `words` are its allowed values, or complete them.

    `default` is a text for the help if the default itself is None.
    """
    text = help if callable(words) or not words else f"{help}: {', '.join(words)}"
    complete = words if callable(words) else one_of(*words) if words else None
    text += f" [default: {default}]" if default else ""
    return typer.Option(help=text, autocompletion=complete, rich_help_panel=panel, min=min)


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

# The next ones are for train, compare and tune.
DataArgument: Any = typer.Argument(
    help="folder of a dataset, or with --root a name of `centerhash datasets`",
    autocompletion=complete_datasets,
)
NamedRootOption = Annotated[Path | None, option("folder of the published dataset named DATA", panel="Data")]
ListsOption = Annotated[
    Path | None, option("folder of train.txt, test.txt, database.txt: 'path 0 1 0 ...'", panel="Data")
]

# The next ones are for compare and tune.
MethodsOption = Annotated[
    str, option("all, or names such as csq,ics", name_in("methods.registry:METHODS", "all"))
]
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

# The help lists these panels in this order; None has the options without a panel.
OPTION_PANELS = (None, "Training", "Head", "Backbone", "Data", "Running")
_COMPLETED = {"method": complete_methods, "backbone": complete_backbones}


class SettingsCommand(TyperCommand):
    """A command with an option for every setting of training; its `context.obj` holds those that were passed.

    The options are built when this command runs: the classes of the settings take long to import.
    """

    # These settings have no option.
    omitted: tuple[str, ...] = ()

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters in the order of the help's panels, required ones first."""
        declared: list[Any] = super().get_params(ctx)
        required = [item for item in declared if item.required]
        parameters = [*required, *self._settings(), *(item for item in declared if not item.required)]
        return sorted(
            parameters, key=lambda item: OPTION_PANELS.index(getattr(item, "rich_help_panel", None))
        )

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        values = {setting.name: ctx.params.pop(setting.name) for setting in self._settings()}
        ctx.obj = {name: value for name, value in values.items() if value is not None}
        return super().invoke(ctx)

    def _settings(self) -> list[Any]:
        return [setting for setting in _setting_options() if setting.name not in self.omitted]


class GridCommand(SettingsCommand):
    """A command that trains methods x bits x seeds with the same settings, without evaluations during training."""

    omitted = ("method", "bits", "seed", "eval_interval")


@cache
def _setting_options() -> list[Any]:
    """Return options for the fields of TrainConfig and HeadOptions that are a `setting`."""
    from centerhash.networks.head_options import HeadOptions
    from centerhash.training.config import TrainConfig

    parameters = []
    fields = {**TrainConfig.model_fields, **HeadOptions.model_fields}
    for name, field in fields.items():
        extra: Any = field.json_schema_extra
        if extra is not None:
            setting = option(
                field.description or "",
                _COMPLETED.get(name) or extra["choices"],
                panel=extra["panel"] or None,
                default=extra["shown"] or str(field.default),
            )
            types = get_args(field.annotation) or (field.annotation,)
            # Several lengths of codes are separated by commas.
            parsed = () if name == "bits" else (bool, int, float)
            value_type: Any = next((item for item in types if item in parsed), str)
            annotation: Any = Annotated[value_type | None, setting]
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation))

    def settings() -> None: ...

    settings.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(settings)
    return get_command(app).params


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
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise ConfigError(f"--option must be NAME=VALUE, got '{text}'. See `centerhash methods METHOD`.")
        pairs[name] = value
    return pairs


def read_training(options: Mapping[str, Any]) -> dict[str, Any]:
    """Read the options of a `SettingsCommand` as settings of training, those of the head in `head`."""
    from centerhash.networks.head_options import HeadOptions

    settings = dict(options)
    if "hidden" in settings:
        widths = _numbers(settings["hidden"], "--hidden", "1024 or 2048,512, or 0 for none")
        settings["hidden"] = () if widths == [0] else tuple(widths)
    head = {name: settings.pop(name) for name in HeadOptions.model_fields if name in settings}
    return {**settings, "head": head} if head else settings


def _numbers(text: str, option: str, examples: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} must be numbers such as {examples}, got '{text}'.") from None


def read_bits(text: str) -> list[int]:
    """Read lengths of codes: `16,32,64`."""
    return list(dict.fromkeys(_numbers(text, "--bits", "16,32,64")))


def read_methods(text: str) -> list[str]:
    """Read names of methods: `all` or `csq,ics`."""
    from centerhash.methods.registry import METHODS, get_method

    if text.strip() == "all":
        return list(METHODS)
    names = dict.fromkeys(part.strip() for part in text.split(","))
    return [get_method(name).name for name in names]


# The grid sets some settings itself, and all methods share the features of one network.
_FIXED = (*GridCommand.omitted, "backbone", "weights", "pretrained", "crop", "pool", "options")


def read_settings(texts: Iterable[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read settings per method from METHOD:NAME=VALUE texts: options of the method, or of training.

    `all` stands for every method of the grid; training settings such as learning_rate or head are read as json.
    """
    from centerhash.methods.registry import get_method
    from centerhash.training.config import TrainConfig

    training = [name for name in TrainConfig.model_fields if name not in _FIXED]
    settings: dict[str, dict[str, Any]] = {}
    for text in texts:
        # A method may be file.py:Class.
        match = re.fullmatch(r"([^=]+):([^:=]+)=(.*)", text)
        if match is None:
            raise ConfigError(f"--option must be METHOD:NAME=VALUE, such as ics:lambda=0.2, got '{text}'.")
        method, name, value = map(str.strip, match.groups())
        if method not in (*methods, "all"):
            raise unknown_name("method in --option", method, [*methods, "all"], "It must be in --methods.")
        for target in methods if method == "all" else [method]:
            options, values = get_method(target).option_names(), settings.setdefault(target, {})
            if name in options:
                values.setdefault("options", {})[name] = value
            elif name in training:
                values[name] = _json_or_text(value)
            else:
                kind = f"option of method '{target}' or of training"
                raise unknown_name(kind, name, [*options, *training])
    return settings


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
