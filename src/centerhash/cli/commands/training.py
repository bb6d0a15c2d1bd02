"""Train, score, encode, explain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from centerhash.cli import completion, console
from centerhash.cli.arguments import (
    CacheOption,
    DepthOption,
    DeviceOption,
    EngineOption,
    JsonOption,
    ModelArgument,
    NoLabelsOption,
    SkipBrokenOption,
    head,
    network,
    option,
    read_pairs,
    read_widths,
    running,
    source,
    training,
)
from centerhash.core.errors import ConfigError


def train(
    data: Annotated[
        Path,
        typer.Argument(
            help="folder of a data set, or with --root a name of `centerhash datasets`",
            autocompletion=completion.data,
        ),
    ],
    out: Annotated[Path, typer.Option(help="folder of the run; the same command resumes it after a stop")],
    method: Annotated[
        str | None,
        option("see `centerhash methods`", completion.methods, default="ics-softmax; itq without labels"),
    ] = None,
    bits: Annotated[int, typer.Option(help="length of the codes, 8 to 1024")] = 64,
    epochs: Annotated[
        int | None, option("passes over the training images", default="30; 6 with --finetune")
    ] = None,
    seed: Annotated[int, typer.Option(help="decides splits, centers, initial weights and order")] = 0,
    finetune: Annotated[
        bool | None, typer.Option("--finetune", help="train the backbone too, on cropped and flipped images")
    ] = None,
    backbone: Annotated[
        str | None, option("see `centerhash backbones`", completion.backbones, default="efficientnet-lite0")
    ] = None,
    preset: Annotated[
        str | None,
        option(
            "paper-alexnet, paper-resnet50 (or -csq), or your own .toml; options override it",
            completion.presets,
        ),
    ] = None,
    options: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="option of the method, e.g. -o lambda=0.2")
    ] = None,
    device: DeviceOption = "auto",
    batch_size: Annotated[
        int | None, training("images per step, over all processes", default="256; 64 with --finetune")
    ] = None,
    learning_rate: Annotated[
        float | None, training("of the head", default="0.004, or the method's own; 0.001 with --finetune")
    ] = None,
    optimizer: Annotated[
        str | None,
        training(
            "adamw: weights decay beside the gradient; adam: L2 within it", ("adamw", "adam"), default="adamw"
        ),
    ] = None,
    weight_decay: Annotated[float | None, training("of the weights", default="0.0001")] = None,
    schedule: Annotated[
        str | None, training("of the learning rate", ("cosine", "steps", "constant"), default="cosine")
    ] = None,
    accumulate: Annotated[
        int | None, training("compute each batch in so many parts, to save memory", default="1")
    ] = None,
    precision: Annotated[
        str | None, training("bits of the arithmetic, 16 and bf16 mixed", ("32", "bf16", "16"), default="32")
    ] = None,
    hidden: Annotated[
        str | None, head("widths of the head's hidden layers, e.g. 1024 or 2048,512; 0 for none")
    ] = None,
    rotate: Annotated[
        bool | None,
        head("rotate the trained logits so that taking signs loses least", default="the method's"),
    ] = None,
    evidence: Annotated[
        bool | None,
        head("take label weights from class evidence, read beside the bits", default="the method's"),
    ] = None,
    presence: Annotated[
        bool | None,
        head("read beside the bits which classes are there, for questions by labels", default="the method's"),
    ] = None,
    sizes: Annotated[
        bool | None,
        head("let weights know how large each class typically is, where the data has areas", default="on"),
    ] = None,
    centers: Annotated[
        str | None,
        head(
            "kind of hash centers",
            ("auto", "hadamard", "spread", "random", "mdsh", "bernoulli", "printed"),
            default="auto",
        ),
    ] = None,
    assignment: Annotated[
        str | None,
        head(
            "of centers to classes, by shared images or not",
            ("cooccurrence", "random"),
            default="cooccurrence",
        ),
    ] = None,
    weights: Annotated[
        Path | None, network("file of the backbone's weights: safetensors or a plain state dict")
    ] = None,
    pretrained: Annotated[
        bool | None, network("start from ImageNet weights, or from random ones", default="ImageNet")
    ] = None,
    crop: Annotated[
        int | None, network("side of the middle of its frame that the backbone reads", default="its own")
    ] = None,
    pool: Annotated[
        str | None,
        network("from its last map to features", ("mean", "max", "mean+max"), default="its own"),
    ] = None,
    backbone_rate: Annotated[
        float | None, network("learning rate of the backbone, as a share of the head's", default="0.1")
    ] = None,
    backbone_norms: Annotated[
        str | None,
        network("statistics of its batch norms with --finetune", ("frozen", "trained"), default="frozen"),
    ] = None,
    no_labels: NoLabelsOption = False,
    root: Annotated[Path | None, source("where the published data set named DATA is")] = None,
    lists: Annotated[
        Path | None, source("folder of train.txt, test.txt, database.txt: 'path 0 1 0 ...'")
    ] = None,
    skip_broken: SkipBrokenOption = False,
    cache: CacheOption = None,
    overwrite: Annotated[
        bool, running("start over when --out holds another run", name="--overwrite")
    ] = False,
    checkpoint_seconds: Annotated[float, running("least time between checkpoints", min=0)] = 20.0,
    logger: Annotated[
        str | None, running("where losses and mAP of every epoch also go", completion.LOGGERS)
    ] = None,
    watch: Annotated[
        int | None,
        running(
            "mAP every so many epochs on a tenth of the training images, which then do not train; "
            "each time takes about as long as an epoch",
            min=1,
        ),
    ] = None,
) -> None:
    """Train a model on your images or features, and encode queries and database.

    Images without labels are enough: `itq` is then trained unless you choose lsh or sh.

    Several processes: `torchrun --nproc-per-node 2 -m centerhash train ...` with the same options.

    Example: `centerhash train photos --method ics --bits 64 --out run`
    """
    given: dict[str, Any] = dict(locals())  # by name; most are fields of TrainConfig

    from centerhash.core.options import read_options
    from centerhash.data import open_dataset
    from centerhash.training.config import TrainConfig, suited
    from centerhash.training.presets import read_preset
    from centerhash.training.run import train as run_training

    widths = None if hidden is None else read_widths(hidden)
    layers = {"hidden": widths, "rotate": rotate, "evidence": evidence, "presence": presence}
    given |= {
        "weights": None if weights is None else str(weights),
        "head": {name: value for name, value in layers.items() if value is not None} or None,
        "options": read_pairs(options or []),
    }
    chosen = {name: given[name] for name in TrainConfig.model_fields if given.get(name) is not None}
    config = read_options(TrainConfig, {**(read_preset(preset) if preset else {}), **chosen}, "training")
    dataset = open_dataset(data, seed=seed, root=root, lists=lists, labels=not no_labels)
    config = suited(config, dataset)
    if not dataset.has_labels:
        console.say(f"{data}: {len(dataset):,} images without labels, so {config.method} is trained")
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
            logger=logger,
            progress=report,
        )
    after = f"evaluate {out}" if dataset.has_labels else f"index create {dataset.name}.index --model {out}"
    console.say(f"run: {out}  next: `centerhash {after}`")


def evaluate(
    codes: Annotated[
        list[Path],
        typer.Argument(help="the folder of a run, or two code files: QUERY DATABASE (.npz or .npy)"),
    ],
    k: DepthOption = 5000,
    query_labels: Annotated[Path | None, typer.Option(help="labels of QUERY, a .npy of (N, C)")] = None,
    database_labels: Annotated[Path | None, typer.Option(help="labels of DATABASE, a .npy of (N, C)")] = None,
    bits: Annotated[int | None, typer.Option(min=1, help="length of packed codes made elsewhere")] = None,
    exclude_self: Annotated[
        bool, typer.Option("--exclude-self", help="a query never retrieves its own database item")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="of the permutation that breaks ties")] = 0,
    curve: Annotated[
        bool, typer.Option("--curve", help="also print precision and recall by Hamming radius")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Score codes: mAP in both conventions with its chance level, precision, NDCG, ACG, WAP.

    Codes made elsewhere are -1/+1, 0/1, bool, or packed with --bits; docs/evaluation.md names the arrays.

    Examples: `centerhash evaluate run`, `centerhash evaluate query.npz database.npz --json`
    """
    from centerhash.encoding.code_files import evaluate_files

    labels = (query_labels, database_labels)
    result = evaluate_files(codes, bits=bits, labels=labels, k=k, exclude_self=exclude_self, seed=seed)
    if as_json:
        console.print_json(result.to_dict())
        return
    console.show_evaluation(result, ", ".join(str(path) for path in codes))
    if curve:
        console.show_curve(result)
    for note in console.evaluation_notes(result):
        console.say(note)


def encode(
    model: ModelArgument,
    images: Annotated[
        list[str],
        typer.Argument(help="images, folders, globs, a data set with labels.csv, or a features .npy"),
    ],
    out: Annotated[Path, typer.Option(help="code file to write (.npz), or a folder for parquet shards")],
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    skip_broken: SkipBrokenOption = False,
    cache: CacheOption = None,
    shard_size: Annotated[int | None, running("images per shard", default="4096", min=1)] = None,
    runner: Annotated[
        str, running("who encodes the shards, this process or Ray", completion.RUNNERS)
    ] = "local",
    ray_address: Annotated[
        str | None, running("of a Ray cluster", default="$RAY_ADDRESS, else Ray on this machine")
    ] = None,
    workers: Annotated[
        int | None, running("of Ray", default="one per GPU, else per processor", min=1)
    ] = None,
) -> None:
    """Encode images into packed binary codes: one code file, or a folder of shards for very many.

    Shards (id, code, labels) are written atomically; the same command resumes after a stop.

    Examples: `centerhash encode run photos/*.jpg --out codes.npz`, `centerhash encode run photos --out codes`
    """
    reading: dict[str, Any] = {"device": device, "engine": engine, "skip_broken": skip_broken}
    for_ray = {"--ray-address": ray_address, "--workers": workers}
    for_shards = {"--runner ray": runner == "ray" or None, "--shard-size": shard_size, **for_ray}
    if out.suffix == ".npz":
        for name, value in for_shards.items():
            if value is not None:
                raise ConfigError(f"{name} is for shards: give --out a folder, not '{out}'.")
        _encode_file(model, images, out, cache, **reading)
        return
    if cache is not None:
        raise ConfigError(
            "--cache is for a code file: shards keep no features. Leave it out, or name a .npz."
        )
    for name, value in for_ray.items():
        if runner == "local" and value is not None:
            raise ConfigError(f"{name} is for --runner ray: add that, or leave it out.")

    from centerhash.encoding.bulk import SHARD_SIZE, broken_text, encode_shards

    with console.progress() as report:
        done = encode_shards(
            model,
            images,
            out,
            runner=runner,
            shard_size=shard_size or SHARD_SIZE,
            ray_address=ray_address,
            workers=workers,
            progress=report,
            **reading,
        )
    console.warn(done.warnings)
    if done.broken:
        console.warn([broken_text(done.broken, done.count + len(done.broken))])
    before = f", {done.found:,} of them from before" if done.found else ""
    console.say(f"{done.count:,} codes in {done.shards:,} shards{before}: {out}")


def _encode_file(source: str, images: list[str], out: Path, cache: Path | None, **reading: Any) -> None:
    from centerhash.encoding.bulk import encode_to_file
    from centerhash.model.model import HashModel
    from centerhash.networks.cache import default_cache

    model = HashModel.load(source)
    with console.progress() as report:
        written = encode_to_file(
            model, images, out, cache=cache or default_cache(), progress=report, **reading
        )
    console.warn(written.warnings)
    by = console.features_by(written.engine)
    console.say(f"{written.count:,} codes of {model.bits} bits in {out}{by}")


def explain(
    model: ModelArgument,
    images: Annotated[list[str], typer.Argument(help="images, folders or globs")],
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="how many centers to show at least")] = 5,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Say what an image shows: predicted labels with their weights, and the nearest centers.

    Example: `centerhash explain run photo.jpg`
    """
    from centerhash.data import list_images
    from centerhash.model.model import HashModel

    loaded = HashModel.load(model)
    paths = list_images(images)
    answers = list(zip(paths, loaded.explain(paths, top=k, device=device, engine=engine), strict=True))
    if as_json:
        told = [{"image": str(path), "labels": [vars(row) for row in found]} for path, found in answers]
        console.print_json(told)
        return
    for path, found in answers:
        rows = (
            (
                row.label,
                f"{row.weight:.2f}" if row.weight else "-",
                "█" * round(20 * row.weight),
                f"{row.similarity:+.2f}",
                str(row.distance),
            )
            for row in found
        )
        columns = ("label", ">weight", "", ">similarity", ">Hamming distance")
        console.show(str(path), columns, rows)
