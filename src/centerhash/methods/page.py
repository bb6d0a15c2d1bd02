"""docs/reference/methods.md, made from METHODS and the docstrings of their classes: `centerhash methods --markdown`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from centerhash.methods.registry import LEARNING_RATES, METHODS, Method, Notes, search_space, value_at

_TRAINING = {"centers": "auto", "assignment": "cooccurrence"}  # settings of training, and their usual values
_SHARED = ("unit", "bandwidth")  # options that are explained once, above the table of methods
_BITS = (16, 64)  # lengths whose defaults are listed
_DEFAULT_RATE = 0.004  # of TrainConfig, which is not imported here: it is above this package

_HEAD = f"""# Methods

Look up the equations, options and defaults of the {{count}} hashing methods, and how each differs from its authors' code.

Needs: `pip install 'centerhash[train]'`

```console
centerhash train photos --method csq --bits 32 -o gamma=0.1 --out run
```

`-o NAME=VALUE` sets an option. `centerhash methods --markdown` generates this page.

**Sources.** Each method was compared with the source that its section names: public code, or for ICS the text of the
paper. "The authors" means this source; other papers were not compared.

**Notation.** z are the logits (K,) of an image, and sigma is the logistic function. v_j is the center of class j in
{{{{-1, +1}}}}^K. y are the labels, and c is their number. s_ij is 1 if images i and j share a label, else 0.

**Options** are listed with their default and, in brackets, the values that `tune` tries. "Authors" lists their setting if
it differs. `unit` scales every feature vector to unit length first. `bandwidth` is the sigma of the kernel, in root mean
squared distances.

**Differences of many methods.**

- All deep methods train one head on frozen features, or a fine-tuned backbone. The authors train AlexNet (DPSH: or
  CNN-F; MDSH: ResNet-50).
- Pairwise losses are means over the pairs of two different images of a batch. The authors sum.
- Central methods assign Hadamard or well-separated centers to classes by co-occurrence (`--centers auto`, `--assignment
  cooccurrence`). The authors assign theirs at random.

**Scores.** Defaults have the best validation mAP in a grid of 12 trials per method, one of them the authors' setting
([how it was run](../explanation/results.md#choice-of-settings)). The table lists mAP@107 over
[retrieved relevant items](metrics.md#mean-average-precision) at 32 bits
([rows](../../benchmarks/results/coco117k-tune/results.jsonl)). Deep methods tried the learning rates
{", ".join(f"{rate:g}" for rate in LEARNING_RATES)}, and the authors' setting with {_DEFAULT_RATE:g} (HyP2: 0.001). A
random ranking has 0.370. A method without scores is not in the grid, and its defaults are not tuned.

| method | family | labels of an image | learning rate | 30 epochs | 10 epochs | authors' setting, 10 epochs |
|---|---|---|---|---|---|---|
"""


def methods_page() -> str:
    """The whole page as markdown."""
    rows = [(row, row.notes) for row in METHODS.values() if row.built_in and row.notes is not None]
    overview = "\n".join(_overview(row, notes) for row, notes in rows)
    sections = (line for row, notes in rows for line in _section(row, notes))
    after = (
        "\nWhat next: [compare methods](../tutorials/compare-methods.md) on your data, "
        "[measured results](../explanation/results.md), [write a method](../tutorials/new-method.md).\n"
    )
    return "\n".join([_HEAD.format(count=len(rows)) + overview, *sections, after])


def _overview(row: Method, notes: Notes) -> str:
    rate = "" if row.family == "shallow" else f"{row.training.get('learning_rate', _DEFAULT_RATE):g}"
    found = notes.scores or (None, None, None)
    scores = " | ".join("" if score is None else f"{score:.3f}" for score in found)
    return f"| [`{row.name}`](#{row.name}) | {row.family} | {row.multi_label} | {rate} | {scores} |"


def _section(row: Method, notes: Notes) -> Iterator[str]:
    path = row.kind.__module__.replace(".", "/")
    about = inspect.cleandoc(row.kind.__doc__ or "").partition("\n")[0].partition(": ")[2]
    yield f"\n## {row.name}\n"
    yield f"**{row.title}**, *{row.paper}*, {row.year} ([source](../../src/{path}.py)): {about}\n"
    yield f"```text\n{inspect.cleandoc(notes.equations)}\n```\n"
    yield f"Compared with {notes.source}. {inspect.cleandoc(notes.differences)}"
    yield from _options(row, notes)


def _options(row: Method, notes: Notes) -> Iterator[str]:
    space, first = search_space(row), next(one for one in METHODS.values() if issubclass(row.kind, one.kind))
    explained = set() if first is row else set(first.options_class().model_fields)
    lines = []
    for name, item in row.options_class().model_fields.items():
        shown, default = item.alias or name, _default(row, name)
        if name not in explained or shown in space.values or default != _default(first, name):
            known = shown in _SHARED or name in explained
            lines.append((shown, default, "" if known else f": {item.description}"))
    for name, usual in _TRAINING.items():
        if row.training.get(name, usual) != usual or name in space.values:
            lines.append((name, _shown(row.training.get(name, usual)), ""))
    if first is not row:
        yield f"[`{first.name}`](#{first.name}) explains the other options."
    yield ""
    for name, default, meaning in lines:
        tried = ", ".join(map(_shown, space.values.get(name, [])))
        yield f"- `{_flag(name)}` {default}{f' ({tried})' if tried else ''}{meaning}"
    settings = {
        **_TRAINING,
        "assignment": "random",
        **row.options({}, 32).model_dump(by_alias=True),
        **row.training,
    }
    other = {
        name: value
        for name, value in space.authors.items()
        if value_at(value, 32, settings.get(name)) != settings.get(name)
    }
    if other and (notes.scores is None or notes.scores.authors is not None):
        yield "- authors: " + ", ".join(f"`{_flag(name)}` {_shown(value)}" for name, value in other.items())


def _flag(name: str) -> str:
    return f"--{name}" if name in _TRAINING else name


def _default(row: Method, name: str) -> str:
    values = [_shown(getattr(row.options({}, bits), name)) for bits in _BITS]
    return (
        values[0] if len(set(values)) == 1 else f"{values[0]} at {_BITS[0]} bits, {values[1]} at {_BITS[1]}"
    )


def _shown(value: object) -> str:
    if value is None:
        return "computed"
    if isinstance(value, dict):
        return ", ".join(f"{name}={_shown(item)}" for name, item in value.items())
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)
