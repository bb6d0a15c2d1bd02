"""docs/methods.md, made from the rows of METHODS and the docstrings of their classes: `centerhash methods --markdown`."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Iterator
from importlib.resources import files

from centerhash.methods.spaces import search_space
from centerhash.methods.table import METHODS, Method

_BITS = (16, 64)  # lengths whose defaults are shown

_HEAD = """# Methods

Made by `centerhash methods --markdown > docs/methods.md` from `methods/table.py` and the classes that it names; a test
keeps the two equal. Every method trains by `centerhash train DATA --method NAME --bits K --out RUN`, on images and
on features, and encodes unseen images. Options are set by `-o NAME=VALUE`; `centerhash tune` chooses among the values
under "tuned over" (`methods/spaces.toml`), with the same number of trials for every method.

Each method is written from its paper's idea, not from other people's code, and was then compared with public source:
"compared with" says which, and "departs" what differs. "Faithful" means faithful to that source. Papers other than ICS
were not at hand.

In the equations: z are the logits (K,) of an image, sigma is the logistic function, v_j the center of class j in
{-1, +1}^K, y the labels; s_ij = 1 where images i and j share a label, else 0.

**Defaults follow one rule for all methods**: the setting that a stored grid preferred, the authors' own being one of its
points (`centerhash tune coco117k --methods all`: 12 short trials and the best three in full at 32 bits, scored on a
quarter of COCO's training list that is held out; [rows](../benchmarks/results/coco117k-tune/results.jsonl),
[choices](../benchmarks/results/coco117k-tune/best.json)). Figures under "defaults" are mAP of that grid, by the peers'
denominator: of full trainings with 30 epochs, of short trials with 10 where it says so. A test keeps both equal.
"""


def methods_page() -> str:
    """The whole page as markdown."""
    notes = method_notes()
    sections = (line for row in _built_in() for line in _method(row, notes[row.name]))
    return "\n".join([_HEAD, _overview(), *sections, ""])


def method_notes() -> dict[str, dict[str, str]]:
    """By method, the texts `source`, `finding`, `equations`, `defaults` and `departures`."""
    return tomllib.loads(files("centerhash.methods").joinpath("notes.toml").read_text(encoding="utf-8"))


def _built_in() -> list[Method]:
    return [row for row in METHODS.values() if row.registered is None]


def _overview() -> str:
    notes = method_notes()
    lines = [
        "| name | family | year | labels | an image with several labels | source |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| [`{row.name}`](#{row.name}) | {row.family} | {row.year} | {'yes' if row.uses_labels else 'no'} | "
        f"{row.multi_label} | {notes[row.name]['source']} |"
        for row in _built_in()
    ]
    return "\n".join(lines)


def _method(row: Method, notes: dict[str, str]) -> Iterator[str]:
    path = row.home.split(":")[0].replace(".", "/")
    yield f"\n## {row.name}\n"
    yield f"**{row.title}**: {row.paper}, {row.year}. In [`{path}.py`](../src/centerhash/{path}.py).\n"
    yield inspect.cleandoc(row.load().__doc__ or "")
    yield f"\n```text\n{notes['equations']}\n```\n"
    yield f"*Compared with* {notes['source']}. {notes['finding']}\n"
    yield f"*Defaults:* {notes['defaults']}\n"
    yield f"*Departs from the paper:* {notes['departures']}"
    for name, value in row.training.items():
        yield f"\nTrains with {name.replace('_', ' ')} {_shown(value)} unless another is given."
    yield from _options(row)
    yield from _space(row)


def _space(row: Method) -> Iterator[str]:
    """What `centerhash tune` tries, and where the authors' setting lies."""
    space = search_space(row)
    tried = "; ".join(f"`{name}` {', '.join(map(_plain, values))}" for name, values in space.values.items())
    own = ", ".join(f"`{name}` {_plain(value)}" for name, value in space.authors.items())
    yield f"\n*Tuned over:* {tried}. *The authors' setting:* {own or 'the default'}."


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


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={_plain(item)}" for name, item in value.items())
    return str(value).lower() if isinstance(value, bool) else _shown(value)


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
