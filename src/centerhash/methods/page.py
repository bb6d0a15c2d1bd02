"""docs/reference/methods.md, made from METHODS and the docstrings of their classes: `centerhash methods --markdown`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from centerhash.methods.registry import METHODS, Method, Notes, search_space

_BITS = (16, 64)  # lengths whose defaults are shown

_HEAD = """# Methods

Made by `centerhash methods --markdown > docs/reference/methods.md` from what is registered beside each method's class; a
test keeps the two equal. Every method trains by `centerhash train DATA --method NAME --bits K --out RUN`, on images and
on features, and encodes unseen images. Options are set by `-o NAME=VALUE`; `centerhash tune` chooses among the values
under "tuned over", with the same number of trials for every method.

Each method is written from its paper's idea, not from other people's code, and was then compared with public source:
"compared with" names it, and "differences" lists what differs. "Faithful" means faithful to that source. Papers other
than ICS were not at hand.

In the equations: z are the logits (K,) of an image, sigma is the logistic function, v_j the center of class j in
{-1, +1}^K, y the labels; s_ij = 1 where images i and j share a label, else 0.

Some differences are common to many methods:

- All deep methods share one head on frozen features (or a fine-tuned backbone), its learning rate and its schedule,
  where the papers train AlexNet (DPSH: or CNN-F; MDSH: ResNet-50).
- In pairwise methods, sums over pairs are means over the pairs of two different images of a batch, so that a
  coefficient means the same at every batch size.
- Shallow methods other than LSH scale features to length 1 first (`unit`): the inner product is then the cosine, which
  retrieval from such features uses.

**Defaults follow one rule for all methods**: the setting that a stored grid preferred, the authors' own being one of its
points (`centerhash tune coco117k --methods all`: 12 short trials and the best three in full at 32 bits, scored on a
quarter of COCO's training list that is held out; [rows](../../benchmarks/results/coco117k-tune/results.jsonl),
[choices](../../benchmarks/results/coco117k-tune/best.json)). Figures under "defaults" are mAP of that grid, by the peers'
denominator: of full training runs with 30 epochs, or of short trials with 10 where stated. A test keeps both equal.
"""


def methods_page() -> str:
    """The whole page as markdown."""
    rows = [(row, row.notes) for row in METHODS.values() if row.built_in and row.notes is not None]
    overview = [
        "| name | family | year | labels | an image with several labels | source |",
        "|---|---|---|---|---|---|",
        *(
            f"| [`{row.name}`](#{row.name}) | {row.family} | {row.year} | {'yes' if row.uses_labels else 'no'} | "
            f"{row.multi_label} | {notes.source} |"
            for row, notes in rows
        ),
    ]
    sections = (line for row, notes in rows for line in _section(row, notes))
    return "\n".join([_HEAD, *overview, *sections, ""])


def _section(row: Method, notes: Notes) -> Iterator[str]:
    path = row.kind.__module__.replace(".", "/")
    yield f"\n## {row.name}\n"
    yield f"**{row.title}**: {row.paper}, {row.year}. In [`{path.partition('/')[2]}.py`](../../src/{path}.py).\n"
    yield inspect.cleandoc(row.kind.__doc__ or "")
    yield f"\n```text\n{inspect.cleandoc(notes.equations)}\n```\n"
    yield f"*Compared with* {notes.source}. {inspect.cleandoc(notes.finding)}\n"
    yield f"*Defaults:* {inspect.cleandoc(notes.defaults)}\n"
    yield f"*Differences:* {inspect.cleandoc(notes.departures)}"
    for name, value in row.training.items():
        yield f"\nTrains with {name.replace('_', ' ')} {_shown(value)} unless another is given."
    yield from _options(row)
    space = search_space(row)
    tried = "; ".join(f"`{name}` {', '.join(map(_shown, values))}" for name, values in space.values.items())
    own = ", ".join(f"`{name}` {_shown(value)}" for name, value in space.authors.items())
    yield f"\n*Tuned over:* {tried}. *The authors' setting:* {own or 'the default'}."


def _options(row: Method) -> Iterator[str]:
    resolved = [row.options({}, bits) for bits in _BITS]
    yield "\n| option | " + " | ".join(f"default at {bits} bits" for bits in _BITS) + " | meaning |"
    yield "|---|" + "---|" * len(_BITS) + "---|"
    for name, item in row.options_class().model_fields.items():
        values = " | ".join(_shown(getattr(options, name)) for options in resolved)
        yield f"| `{item.alias or name}` | {values} | {item.description} |"


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={_shown(item)}" for name, item in value.items())
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)
