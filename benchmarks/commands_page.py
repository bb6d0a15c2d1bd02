"""Write docs/reference/commands.md from the commands themselves.

python -m benchmarks.commands_page > docs/reference/commands.md
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from centerhash.cli import app

_HEAD = """# Commands

Look up every command, its options and its JSON output.

Needs: base install, except for the commands below

| command | needs |
|---|---|
| `train`, `tune`, `export`, `publish`, `methods`, `options`; `--engine torch` | `centerhash[train]` |
| `compare` | `centerhash[train,plots]` |
| `evaluate` | `centerhash[train]` or `centerhash[fast]` |
| `inspect --out` | `centerhash[plots]` |
| `encode --out FOLDER`, parquet files | `centerhash[parquet]` |
| `encode --runner ray`, `--store milvus:...`, Faiss files | `centerhash[ray]`, `[milvus]`, `[faiss]` |
| `train --logger NAME` | `centerhash[NAME]`, except for `csv` |
| `mcp` | `centerhash[mcp]` |

```console
centerhash index create photos.index
centerhash index add photos.index photos
centerhash search photos.index photos/dog.jpg
```

`centerhash COMMAND --help` prints the same texts; `python -m benchmarks.commands_page` generates this page. Invalid input
results in one line on stderr and exit code 2. `centerhash --install-completion` enables tab completion. A clone of the
repository also has `python -m reproduction` for the demo and the tables of the paper.

## Shared options

Several commands have these options, with the same meaning. `DATA` is a folder in one of the [layouts](data-layouts.md).
`train`, `compare` and `tune` also accept the name of a [published dataset](datasets.md), with `--root`.
`MODEL` is the folder of a finished run, `coco` (the built-in model) or `hf:owner/name`.
"""

_JSON = """
## JSON output

`--json` prints one line. Keys are those of `to_dict()` in Python and of the [server](http.md). Commands that list things
print a list of objects, and all others one object.

| command | keys |
|---|---|
| `search` | `labels` of the query; `results`, best first: `id`, `distance`, `labels`, `path`, `visual`, `probability`, \
`share`, `paths`, `name`, `taken`, `camera`, `width`, `height`; `bits`, `size` |
| `duplicates` | `images`; `groups` with `kind`, `rule`, `keep`, `others`; `skipped`, `notes`; `moved` or `planned` with \
`--move-to`; only `undone` with `--undo` |
| `explain` | per image `image` and `labels` with `label`, `weight`, `similarity`, `distance` |
| `evaluate` | the [metrics](metrics.md) by name |
| `inspect` | `images`, `classes`, `labels_per_image`, `splits`, `warnings` and others; `broken`, `copies`, \
`relabeled` and `sizes` are null with `--no-images` |
| `methods`, `options`, `backbones`, `datasets` | one object per row |
| `export` | `path`, `numbers`, `size`, `compared_on`, `images`, `equal_bits`, `equal_codes` |
| `doctor` | `versions`, `extras`, `machine`, `engines`, `stores`, `backbones`, `cache`, `notes`, `problems` |

What next: [search your photos](../tutorials/your-photos.md), [train on your labels](../tutorials/train-your-labels.md).
"""

_COMMON = 3  # commands that must have an option in the same words for it to be listed once


def commands_page() -> str:
    """The whole page as markdown."""
    commands = dict(_commands("centerhash", get_command(app)))
    texts = Counter(_option(one) for command in commands.values() for one in _options(command))
    shared = [option for option, count in texts.items() if count >= _COMMON]
    lines = [_HEAD, "| option | meaning |\n|---|---|", *sorted(shared)]
    for name, command in commands.items():
        lines += ["", f"## {name.removeprefix('centerhash ')}", "", *_section(name, command, shared)]
    return "\n".join(lines) + "\n" + _JSON


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and commands, those of groups in the place of the group."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for key, child in command.commands.items():
        yield from _commands(f"{name} {key}", child)


def _options(command: Any) -> list[Any]:
    context = command.make_context("centerhash", [], resilient_parsing=True)
    return [
        one
        for one in command.get_params(context)
        if one.param_type_name == "option" and "--help" not in one.opts
    ]


def _section(name: str, command: Any, shared: list[str]) -> Iterator[str]:
    context = command.make_context("centerhash", [], resilient_parsing=True)
    about, _, examples = " ".join((command.help or "").split()).partition("Example")
    words = [
        f"`{(one.metavar or one.name or '').upper()}`"
        for one in command.get_params(context)
        if one.param_type_name == "argument"
    ]
    yield about.strip()
    yield ""
    yield f"Arguments: {', '.join(words)}. Example{examples}" if words else f"Example{examples}"
    options = _options(command)
    own = [line for one in options if (line := _option(one)) not in shared]
    also = [f"`{_names(one)[0]}`" for one in options if _option(one) in shared]
    if also:
        yield ""
        yield f"Shared options: {', '.join(also)}."
    if own:
        yield ""
        yield "| option | meaning |\n|---|---|"
        yield from own


def _names(option: Any) -> list[str]:
    return sorted(
        [*option.opts, *option.secondary_opts],
        key=lambda name: (not name.startswith("--"), name.startswith("--no-")),
    )


def _option(option: Any) -> str:
    text = " ".join((option.help or "").split())
    default = option.default
    plain = (
        default is not None
        and not callable(default)
        and not isinstance(default, bool)
        and default not in ([], ())
        and "[default" not in text
    )
    text += f" [default: {default}]" if plain else ""
    shown = ", ".join(f"`{name}`" for name in _names(option))
    return f"| {shown} | {text.replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    print(commands_page(), end="")
