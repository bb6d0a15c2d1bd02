"""docs/methods.md, made from the rows of METHODS and the docstrings of their classes: `centerhash methods --markdown`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator

from centerhash.methods import METHODS, Method

_BITS = (16, 64)  # lengths whose defaults are shown

_HEAD = """# Methods

Made by `centerhash methods --markdown > docs/methods.md` from the rows of `methods.py` and the classes that they name;
a test keeps the two equal. Every method trains by `centerhash train DATA --method NAME --bits K --out RUN`, on images and
on features, and encodes unseen images. Options are set by `-o NAME=VALUE`.
"""


def methods_page() -> str:
    """The whole page as markdown."""
    return "\n".join([_HEAD, _overview(), *(line for row in METHODS.values() for line in _method(row)), ""])


def _overview() -> str:
    lines = ["| name | family | year | labels | an image with several labels |", "|---|---|---|---|---|"]
    lines += [
        f"| [`{row.name}`](#{row.name}) | {row.family} | {row.year} | {'yes' if row.uses_labels else 'no'} | "
        f"{row.multi_label} |"
        for row in METHODS.values()
    ]
    return "\n".join(lines)


def _method(row: Method) -> Iterator[str]:
    module_name, class_name = row.home.split(":")
    kind = getattr(importlib.import_module(f"centerhash.{module_name}"), class_name)
    path = module_name.replace(".", "/")
    yield f"\n## {row.name}\n"
    yield f"**{row.title}**: {row.paper}, {row.year}. In [`{path}.py`](../src/centerhash/{path}.py).\n"
    yield inspect.cleandoc(kind.__doc__ or "")
    for name, value in row.training.items():
        yield f"\nTrains with {name.replace('_', ' ')} {value:g} unless another is given."
    yield from _options(row)


def _options(row: Method) -> Iterator[str]:
    resolved = [row.options({}, bits) for bits in _BITS]
    fields = row.options_class().model_fields
    if not fields:
        yield "\nNo options."
        return
    yield "\n| option | " + " | ".join(f"default at {bits} bits" for bits in _BITS) + " | meaning |"
    yield "|---|" + "---|" * len(_BITS) + "---|"
    for name, item in fields.items():
        values = " | ".join(_shown(getattr(options, name)) for options in resolved)
        yield f"| `{item.alias or name}` | {values} | {item.description} |"


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
