"""What there is: networks that turn images into features."""

from __future__ import annotations

from centerhash.cli.arguments import JsonOption


def backbones(as_json: JsonOption = False) -> None:
    """List the networks that turn images into features, and whether their weights are here.

    Example: `centerhash backbones --json`
    """
    from centerhash.cli import console
    from centerhash.networks.backbones import backbone_rows

    rows = backbone_rows()
    if as_json:
        console.print_json(rows)
        return
    shown = (
        (
            str(row["name"]),
            str(row["features"]),
            str(row["crop"]) + ("" if row["crop"] == row["resize"] else f" of {row['resize']}"),
            str(row["pool"] or "its own"),
            f"{row['parameters']:,}",
            "here" if row["weights_here"] else f"{row['megabytes']} MB",
        )
        for row in rows
    )
    columns = ("name", ">features", ">input", "pool", ">parameters", ">weights")
    console.out.print(console.table("backbones", columns, shown))
    for row in rows:
        if not row["weights_here"]:
            console.out.print(f"{row['name']}: {row['weights']}", soft_wrap=True)
    console.out.print("Also timm:NAME, any network of timm; --weights FILE takes weights of your own.")
