"""Train, score, encode, explain, export, publish."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from centerhash.cli import arguments, console
from centerhash.cli.arguments import flag, option
from centerhash.core.errors import ConfigError
from centerhash.core.extras import TRAINING, check_installed


def train(
    context: typer.Context,
    data: Annotated[Path, arguments.DataArgument],
    out: Annotated[Path, typer.Option(help="folder of the run; the same command resumes it")],
    preset: Annotated[
        str | None, option("a preset or your own .toml; options override it", arguments.complete_presets)
    ] = None,
    options: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="of the method, e.g. -o lambda=0.2")
    ] = None,
    device: arguments.DeviceOption = "auto",
    no_labels: arguments.NoLabelsOption = False,
    root: arguments.NamedRootOption = None,
    lists: arguments.ListsOption = None,
    skip_broken: arguments.SkipBrokenOption = False,
    cache: arguments.CacheOption = None,
    overwrite: Annotated[
        bool, flag("--overwrite", "start over if --out holds another run", "Running")
    ] = False,
    checkpoint_seconds: Annotated[
        float, option("minimum time between checkpoints", panel="Running", min=0)
    ] = 20.0,
) -> None:
    """Train a model on images or features, and encode its queries and database.

    Images without labels are enough: `itq` is then trained unless you choose lsh or sh.

    Several lengths, such as --bits 16,32,64, train nested codes: the first 16 bits are the 16-bit code. Each shorter
    length has its own folder in the run, such as run/16.

    Several processes: `torchrun --nproc-per-node 2 -m centerhash train ...` with the same options.

    Example: `centerhash train photos --method ics --bits 64 --out run`
    """
    check_installed(*TRAINING)

    from centerhash.core.options import merge_options, read_options
    from centerhash.data import open_dataset
    from centerhash.training.config import TrainConfig
    from centerhash.training.presets import read_preset
    from centerhash.training.run import train as run_training

    settings = arguments.read_training(context.obj)
    settings |= {"options": arguments.read_pairs(options)} if options else {}
    config = read_options(
        TrainConfig, merge_options(read_preset(preset) if preset else {}, settings), "training"
    )
    dataset = open_dataset(data, seed=config.seed, root=root, lists=lists, labels=not no_labels)
    console.warn(dataset.warnings)
    with console.progress() as report:
        model = run_training(
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
    if not dataset.has_labels:
        images = console.counted(len(dataset), "image")
        console.output(f"{data}: {images} without labels, so {model.spec.method} was trained")
    shorter = "".join(f", {out / str(code.bits)} ({code.bits} bits)" for code in model.spec.shorter)
    after = f"evaluate {out}" if dataset.has_labels else f"index create {dataset.name}.index --model {out}"
    console.output(f"run: {out}{shorter}  next: `centerhash {after}`")


def evaluate(
    codes: Annotated[
        list[Path], typer.Argument(help="the folder of a run, or two code files: QUERY DATABASE")
    ],
    k: arguments.DepthOption = 5000,
    query_labels: Annotated[Path | None, typer.Option(help="labels of QUERY, a .npy of (N, C)")] = None,
    database_labels: Annotated[Path | None, typer.Option(help="labels of DATABASE, a .npy of (N, C)")] = None,
    bits: Annotated[int | None, typer.Option(min=1, help="length of packed codes of other programs")] = None,
    exclude_self: Annotated[
        bool, flag("--exclude-self", "a query never retrieves its own database item")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="of the permutation that breaks ties")] = 0,
    plots: Annotated[
        Path | None, typer.Option(help="folder for plots (png): curves, a heat map of the codes, t-SNE")
    ] = None,
    as_json: arguments.JsonOption = False,
) -> None:
    """Score codes: mAP in two conventions, precision, NDCG, ACG and WAP, next to a random ranking.

    Codes of other programs may be -1/+1, 0/1, bool, or packed with --bits; see docs/reference/metrics.md.

    Examples: `centerhash evaluate run --plots plots`, `centerhash evaluate query.npz database.npz --json`
    """
    check_installed("numba", *(["matplotlib", "sklearn"] if plots else []))

    from centerhash.encoding.code_files import evaluate_codes_of, read_code_pair

    query, database = read_code_pair(codes, bits=bits, labels=(query_labels, database_labels))
    result = evaluate_codes_of(query, database, k=k, exclude_self=exclude_self, seed=seed)
    if plots is not None:
        from centerhash.experiments.plots import write_plots

        console.log(f"plots: {', '.join(map(str, write_plots(database, result, plots)))}")
    if as_json:
        console.print_json(result.to_dict())
        return
    title = ", ".join(map(str, codes))
    console.table(title, ("metric", ">value", ">random", "meaning"), result.table())
    for note in console.evaluation_notes(result):
        console.output(note)


def encode(
    model: arguments.ModelArgument,
    images: Annotated[
        list[str], typer.Argument(help="images, folders, globs, a labeled dataset, or a features .npy")
    ],
    out: Annotated[Path, typer.Option(help="code file to write (.npz), or a folder for parquet shards")],
    device: arguments.DeviceOption = "auto",
    engine: arguments.EngineOption = "auto",
    skip_broken: arguments.SkipBrokenOption = False,
    cache: arguments.CacheOption = None,
    shard_size: Annotated[int | None, option("images per shard", default="4096", min=1)] = None,
    runner: Annotated[str, option("what encodes the shards", arguments.RUNNERS)] = "local",
    ray_address: Annotated[
        str | None, option("Ray cluster", default="$RAY_ADDRESS, else Ray on this machine")
    ] = None,
    workers: Annotated[int | None, option("Ray actors", default="one per GPU, else per CPU", min=1)] = None,
) -> None:
    """Encode images into packed binary codes: one code file, or a folder of parquet shards.

    Shards (id, code, labels) are written atomically; the same command resumes after a stop.

    Examples: `centerhash encode run photos/*.jpg --out codes.npz`, `centerhash encode run photos --out codes`
    """
    is_file, on_ray = out.suffix == ".npz", runner == "ray"
    if is_file and (shard_size or on_ray):
        raise ConfigError(
            "--shard-size and --runner ray are for a folder of shards, not for a code file (.npz)."
        )
    if not is_file and cache:
        raise ConfigError("--cache is for a code file (.npz), not for a folder of shards.")
    if not on_ray and (ray_address or workers):
        raise ConfigError("--ray-address and --workers are for --runner ray.")
    check_installed(*(["ray"] if on_ray else []), *([] if is_file else ["pyarrow"]))

    from centerhash.encoding.bulk import SHARD_SIZE, broken_text, encode_shards, encode_to_file
    from centerhash.model.loading import load
    from centerhash.networks.cache import default_cache

    with console.progress() as report:
        reading: dict[str, Any] = {"device": device, "engine": engine, "skip_broken": skip_broken}
        reading["progress"] = report
        if is_file:
            result = encode_to_file(load(model), images, out, cache=cache or default_cache(), **reading)
        else:
            reading |= {"runner": runner, "ray_address": ray_address, "workers": workers}
            result = encode_shards(model, images, out, shard_size=shard_size or SHARD_SIZE, **reading)
    console.warn(result.warnings)
    if result.broken:
        console.warn([broken_text(result.broken, result.count + len(result.broken))])
    existing = f", {result.existing:,} of them from before" if result.existing else ""
    shards = f" in {console.counted(result.shards, 'shard')}{existing}" if result.shards else ""
    engine = console.features_by(result.engine)
    console.output(f"{console.counted(result.count, 'code')}{shards}: {out}{engine}")


def explain(
    model: arguments.ModelArgument,
    images: Annotated[list[str], typer.Argument(help="images, folders or globs")],
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="minimum number of centers to list")] = 5,
    device: arguments.DeviceOption = "auto",
    engine: arguments.EngineOption = "auto",
    as_json: arguments.JsonOption = False,
) -> None:
    """Print the predicted labels of images, with their weights and nearest centers.

    Example: `centerhash explain run photo.jpg`
    """
    from centerhash.data import list_images
    from centerhash.model.loading import load

    loaded = load(model)
    paths = list_images(images)
    explanations = list(zip(paths, loaded.explain(paths, top=k, device=device, engine=engine), strict=True))
    if as_json:
        console.print_json(
            [{"image": str(path), "labels": [vars(row) for row in labels]} for path, labels in explanations]
        )
        return
    columns = ("label", ">weight", "", ">similarity", ">Hamming distance")
    for path, labels in explanations:
        rows = []
        for row in labels:
            weight, bar = f"{row.weight:.2f}" if row.weight else "-", "█" * round(20 * row.weight)
            rows.append((row.label, weight, bar, f"{row.similarity:+.2f}", str(row.distance)))
        console.table(str(path), columns, rows)


def export(
    model: arguments.ModelArgument,
    out: Annotated[Path, typer.Option(help="file to write")],
    images: Annotated[
        list[str] | None,
        option("images, folder or glob to compare codes on", default="four sample photos"),
    ] = None,
    as_json: arguments.JsonOption = False,
) -> None:
    """Write a model as one file that runs without PyTorch: pixels in, logits and packed codes out.

    Its codes are compared with PyTorch's first; a file whose codes differ is not written.

    Example: `centerhash export run --out model.onnx`
    """
    from centerhash.model.export import export_model
    from centerhash.model.loading import load

    result = export_model(load(model), out, images=images)
    if as_json:
        console.print_json(asdict(result))
        return
    console.output(str(result))


def publish(
    run: Annotated[Path, typer.Argument(help="folder of a finished run, or of a model")],
    repository: Annotated[str, typer.Argument(help="where to: owner/name on the Hugging Face hub")],
    license: Annotated[str | None, typer.Option(help="license of the model, such as apache-2.0")] = None,
    private: Annotated[bool, flag("--private", "make a new repository private")] = False,
) -> None:
    """Upload a model to the Hugging Face hub, with a card of its settings, results and labels.

    Example: `centerhash publish run jane/photos-64 --license apache-2.0`
    """
    from centerhash.encoding.code_files import DATABASE, evaluate_codes_of, read_run_codes
    from centerhash.model.model import HashModel

    model, evaluation = HashModel.load(run), None
    if (run / DATABASE).exists():
        query, database = read_run_codes(run)
        # A training run without labels has nothing to score by.
        if query.labels is not None:
            evaluation = evaluate_codes_of(query, database)
    address = model.push_to_hub(repository, evaluation=evaluation, license=license, private=private or None)
    console.output(f"published: {address}")
    console.output(f'anyone who may read it opens it by `centerhash.load("hf:{repository}")`')
