"""Train, score, encode, explain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from centerhash.cli.arguments import read_pairs, read_widths
from centerhash.cli.commands.shared import CacheOption, DeviceOption, JsonOption, SkipBrokenOption
from centerhash.core.errors import ConfigError


def train(
    data: Annotated[
        Path,
        typer.Argument(help="folder of a data set, or with --root a name of `centerhash datasets`"),
    ],
    out: Annotated[Path, typer.Option(help="folder of the run; the same command goes on where it stopped")],
    method: Annotated[
        str | None, typer.Option(help="see `centerhash methods` [default: ics-softmax]")
    ] = None,
    bits: Annotated[int, typer.Option(help="length of the codes, 8 to 1024")] = 64,
    seed: Annotated[int, typer.Option(help="decides splits, centers, initial weights and order")] = 0,
    root: Annotated[Path | None, typer.Option(help="where the published data set named DATA is")] = None,
    lists: Annotated[
        Path | None, typer.Option(help="folder of train.txt, test.txt, database.txt: 'path 0 1 0 ...'")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="paper-alexnet, paper-resnet50, or a .toml of your own; options here go before it"),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="passes over the training images [default: 30; 6 with --finetune]")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="images per step, of all processes [default: 256; 64 with --finetune]")
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="[default: 0.004, or as the method wants; 0.001 with --finetune]"),
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="decoupled, as in AdamW [default: 0.0001]")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="of the learning rate: cosine, steps, constant [default: cosine]")
    ] = None,
    hidden: Annotated[
        str | None, typer.Option(help="widths of the head's hidden layers, e.g. 1024 or 2048,512; 0 for none")
    ] = None,
    rotate: Annotated[
        bool | None,
        typer.Option(help="turn the trained logits to where signs lose least [default: the method's]"),
    ] = None,
    evidence: Annotated[
        bool | None, typer.Option(help="weights from class evidence beside the bits [default: the method's]")
    ] = None,
    centers: Annotated[
        str | None, typer.Option(help="kind of hash centers: auto, hadamard, spread, random")
    ] = None,
    assignment: Annotated[
        str | None,
        typer.Option(help="of centers to classes: cooccurrence (classes that share images) or random"),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="option of the method, e.g. -o lambda=0.2")
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="see `centerhash backbones` [default: efficientnet-lite0]")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="the backbone's weights: safetensors or a plain state dict")
    ] = None,
    pretrained: Annotated[
        bool | None, typer.Option("--pretrained/--no-pretrained", help="ImageNet weights, or random ones")
    ] = None,
    finetune: Annotated[
        bool | None, typer.Option("--finetune", help="train the backbone too, on cropped and flipped images")
    ] = None,
    backbone_rate: Annotated[
        float | None, typer.Option(help="the backbone's share of the learning rate [default: 0.1]")
    ] = None,
    accumulate: Annotated[
        int | None, typer.Option(help="parts that a batch is computed in, to save memory [default: 1]")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="32, bf16 or 16 (mixed) [default: 32]")] = None,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    skip_broken: SkipBrokenOption = False,
    overwrite: Annotated[bool, typer.Option(help="start anew when --out holds another run")] = False,
    checkpoint_seconds: Annotated[float, typer.Option(min=0, help="least time between checkpoints")] = 20.0,
) -> None:
    """Train a model on your images or features, and encode queries and database.

    Several processes: `torchrun --nproc-per-node 2 -m centerhash train ...` with the same options.

    Example: `centerhash train photos --method ics --bits 64 --out run`
    """
    from centerhash.cli import console
    from centerhash.core.options import read_options
    from centerhash.data.published.named import open_data
    from centerhash.training.config import TrainConfig
    from centerhash.training.presets import read_preset
    from centerhash.training.run import train as run_training

    widths = None if hidden is None else read_widths(hidden)
    head = {"hidden": widths, "rotate": rotate, "evidence": evidence}
    given: dict[str, Any] = {
        "method": method,
        "bits": bits,
        "seed": seed,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "centers": centers,
        "assignment": assignment,
        "backbone": backbone,
        "weights": None if weights is None else str(weights),
        "pretrained": pretrained,
        "finetune": finetune,
        "backbone_rate": backbone_rate,
        "accumulate": accumulate,
        "precision": precision,
        "head": {name: value for name, value in head.items() if value is not None} or None,
        "options": read_pairs(option or []),
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    config = read_options(TrainConfig, {**(read_preset(preset) if preset else {}), **chosen}, "training")
    dataset = open_data(data, seed=seed, root=root, lists=lists)
    console.warn(dataset.warnings)
    with console.progress() as report:
        run_training(
            dataset,
            config=config,
            out=out,
            cache=cache or "auto",
            device=device,
            overwrite=overwrite,
            skip_broken=skip_broken,
            checkpoint_seconds=checkpoint_seconds,
            progress=report,
        )
    console.out.print(f"run: {out}  next: `centerhash evaluate {out}`", soft_wrap=True)


def evaluate(
    codes: Annotated[
        list[Path], typer.Argument(help="the folder of a run, or two code files: QUERY.npz DATABASE.npz")
    ],
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="depth of mAP, NDCG, ACG and WAP")] = 5000,
    exclude_self: Annotated[bool, typer.Option(help="a query never retrieves its own database item")] = False,
    seed: Annotated[int, typer.Option(min=0, help="of the permutation that breaks ties")] = 0,
    curve: Annotated[bool, typer.Option(help="also print precision and recall by Hamming radius")] = False,
    as_json: JsonOption = False,
) -> None:
    """Score codes: mAP in both conventions with its chance level, precision, NDCG, ACG, WAP.

    Examples: `centerhash evaluate run`, `centerhash evaluate query.npz database.npz --json`
    """
    from centerhash.cli import console
    from centerhash.encoding.code_files import evaluate_files

    result = evaluate_files(codes, k=k, exclude_self=exclude_self, seed=seed)
    if as_json:
        typer.echo(json.dumps(result.to_dict()))
        return
    console.out.print(console.evaluation_table(result, ", ".join(str(path) for path in codes)))
    if curve:
        console.out.print(console.curve_table(result))
    for note in console.evaluation_notes(result):
        console.out.print(note)


def encode(
    run: Annotated[Path, typer.Argument(help="folder of a finished run")],
    images: Annotated[
        list[str],
        typer.Argument(help="images, folders, globs, a data set with labels.csv, or a features .npy"),
    ],
    out: Annotated[Path, typer.Option(help="code file to write (.npz), or a folder for parts of parquet")],
    engine: Annotated[
        str,
        typer.Option(
            help="auto (the fastest here), torch, onnx, openvino; for parts: local (this process), ray"
        ),
    ] = "auto",
    ray_address: Annotated[
        str | None, typer.Option(help="of a Ray cluster [default: $RAY_ADDRESS, else Ray on this machine]")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="of Ray [default: one per GPU, else per processor]")
    ] = None,
    part_size: Annotated[int | None, typer.Option(min=1, help="images per part [default: 4096]")] = None,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    skip_broken: SkipBrokenOption = False,
) -> None:
    """Encode images into packed binary codes: one code file, or a folder of parts for very many.

    Parts (id, code, labels) are written whole or not at all; the same command goes on where it stopped.

    Examples: `centerhash encode run photos/*.jpg --out codes.npz`, `centerhash encode run photos --out codes`
    """
    only_parts = {"--ray-address": ray_address, "--workers": workers, "--part-size": part_size}
    given = [name for name, value in only_parts.items() if value is not None]
    if out.suffix == ".npz":
        refused = [*(["--engine ray"] if engine == "ray" else []), *given]
        if refused:
            raise ConfigError(f"{refused[0]} is for parts: give --out a folder, not '{out}'.")
        _encode_file(run, images, out, cache, device, engine, skip_broken)
        return
    engine = "local" if engine == "auto" else engine
    if cache is not None:
        raise ConfigError("--cache is for a code file: parts keep no features. Leave it out, or name a .npz.")
    if engine == "local" and given and given[0] != "--part-size":
        raise ConfigError(f"{given[0]} is for --engine ray: add that, or leave it out.")

    from centerhash.cli import console
    from centerhash.encoding.work import PART_SIZE, broken_text, encode_parts

    with console.progress() as report:
        done = encode_parts(
            run,
            images,
            out,
            runner=engine,
            part_size=part_size or PART_SIZE,
            device=device,
            skip_broken=skip_broken,
            ray_address=ray_address,
            workers=workers,
            progress=report,
        )
    console.warn(done.warnings)
    if done.broken:
        console.warn([broken_text(done.broken, done.count + len(done.broken))])
    before = f", {done.found:,} of them from before" if done.found else ""
    console.out.print(f"{done.count:,} codes in {done.parts:,} parts{before}: {out}", soft_wrap=True)


def _encode_file(
    run: Path,
    images: list[str],
    out: Path,
    cache: Path | None,
    device: str,
    engine: str,
    skip_broken: bool,
) -> None:
    from centerhash.cli import console
    from centerhash.encoding.code_files import encode_to_file
    from centerhash.model import HashModel
    from centerhash.networks.cache import default_cache

    model = HashModel.load(run)
    with console.progress() as report:
        written = encode_to_file(
            model,
            images,
            out,
            cache=cache or default_cache(),
            device=device,
            engine="auto" if engine == "local" else engine,
            skip_broken=skip_broken,
            progress=report,
        )
    console.warn(written.warnings)
    by = f", features by {written.engine.name}" if written.engine else ""
    console.out.print(f"{written.count:,} codes of {model.bits} bits in {out}{by}", soft_wrap=True)


def explain(
    run: Annotated[Path, typer.Argument(help="folder of a finished run")],
    images: Annotated[list[str], typer.Argument(help="images, folders or globs")],
    top: Annotated[int, typer.Option(min=1, help="how many centers to show at least")] = 5,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Say what an image shows: predicted labels with their weights, and the nearest centers.

    Example: `centerhash explain run photo.jpg`
    """
    from rich.table import Table

    from centerhash.cli import console
    from centerhash.data import list_images
    from centerhash.model import HashModel

    model = HashModel.load(run)
    paths = list_images(images)
    answers = model.explain(paths, top=top, device=device)
    if as_json:
        rows = [
            {"image": str(p), "labels": [vars(a) for a in found]}
            for p, found in zip(paths, answers, strict=True)
        ]
        typer.echo(json.dumps(rows))
        return
    for path, found in zip(paths, answers, strict=True):
        table = Table(title=str(path), title_justify="left")
        for column in ("label", "weight", "", "similarity", "Hamming distance"):
            table.add_column(column, justify="left" if column in ("label", "") else "right")
        for row in found:
            weight = f"{row.weight:.2f}" if row.weight else "-"
            bar = "█" * round(20 * row.weight)
            table.add_row(row.label, weight, bar, f"{row.similarity:+.2f}", str(row.distance))
        console.out.print(table)
