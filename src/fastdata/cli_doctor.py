"""The command `fastdata doctor`."""

from __future__ import annotations

from typing import Any

import click

__all__ = ["doctor"]


@click.command()
@click.argument("path", required=False, type=click.Path())
@click.option("--loader", metavar="MODULE:FUNCTION", help="Function that returns your DataLoader or Loader.")
@click.option(
    "--model",
    metavar="MODULE:FUNCTION",
    help="Function that returns a training step, which takes a batch; or (model, loss_fn), with loss_fn(model, batch) -> losses.",
)
@click.option("--size", type=click.IntRange(1), help="Stored size of a store, or to prepare a folder with.")
@click.option("--crop", type=click.IntRange(1), help="Side of the random crops. Default: 224, or the images' shorter side.")
@click.option("--batch-size", type=click.IntRange(1), help="Images per batch. Default: 64.")
@click.option("--workers", type=click.IntRange(0), help="Worker processes that you use. Default: one per core.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=15.0, help="Time to measure, about.")
@click.option("--json", "as_json", is_flag=True, help="Print all numbers as one JSON object.")
def doctor(path: str | None, as_json: bool, **options: Any) -> None:
    """Find out what limits your training: storage, CPU, the copy to the GPU, or the model.

    PATH is a store, or any SOURCE of images that is not prepared yet, such as a folder with a folder per class: it is read as
    ImageFolder in torch's DataLoader would, and 300 images are prepared, to be read by the Loader. For your own loader, give
    --loader, and for your model --model.
    """
    from fastdata.bench.doctor_command import examine

    found = examine(path, **options)
    click.echo(found.json() if as_json else str(found))
