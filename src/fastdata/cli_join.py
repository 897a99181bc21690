"""The commands `fastdata merge` and `fastdata subset`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fastdata.errors import PrepError
from fastdata.words import number_of

__all__ = ["merge", "subset"]

STORE = click.Path(exists=True, file_okay=False)


@click.command()
@click.argument("stores", nargs=-1, required=True, type=STORE, metavar="STORE...")
@click.argument("out", type=click.Path())
def merge(stores: tuple[str, ...], out: str) -> None:
    """Make one store, OUT, of several STOREs that were prepared with the same options. Their shards are linked where the file
    system can, and copied otherwise."""
    from fastdata.prepare.grow import merge
    from fastdata.store.store import Store

    made = merge(stores, out)
    click.echo(f"{out}: {number_of(len(Store(made, kind=None)), 'sample')} of {len(stores)} stores")


@click.command()
@click.argument("store", type=STORE)
@click.argument("out", type=click.Path())
@click.option("--ids", type=click.Path(exists=True, dir_okay=False), help="File with the number of a sample in each line.")
@click.option(
    "--where", multiple=True, metavar="CONDITION", help="Condition such as label=cat or width>=512; may repeat: all must hold."
)
@click.option("--fraction", type=float, help="Share of the samples, drawn at random.")
@click.option("--seed", type=int, default=0, help="Seed of the draw.")
def subset(store: str, out: str, ids: str | None, **options: Any) -> None:
    """Make a store, OUT, of some samples of STORE. It refers to the shards of STORE, which must stay where it is, seen from OUT."""
    from fastdata.prepare.subsets import subset
    from fastdata.store.store import Store

    made = subset(store, out, ids=None if ids is None else _numbers(Path(ids)), **options)
    found, whole = (len(Store(path, kind=None)) for path in (made, store))
    click.echo(f"{out}: {found} of {number_of(whole, 'sample')} of {store}")


def _numbers(path: Path) -> list[int]:
    found = []
    for k, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip():
            if not line.strip().isdecimal():
                raise PrepError(f"--ids {path}, line {k}: {line.strip()!r:.80} is not the number of a sample")
            found.append(int(line))
    return found
