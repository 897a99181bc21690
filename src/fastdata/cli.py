"""The commands `fastdata` and `fastdata-prep`: arguments, output and exit codes. Torch is imported only where it is needed.

Exit codes: 0 success; 1 the store is broken, or a dry run finds too little disk space; 2 wrong use; 3 done, but with more rejects
than --max-reject-rate, in a dry run too; 130 interrupted, or ended by SIGTERM.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from fastdata._version import __version__
from fastdata.cli_doctor import doctor
from fastdata.cli_options import KINDS, SETTINGS, STORAGE, File, with_options
from fastdata.cli_prep import prep
from fastdata.errors import FastDataError, PrepError
from fastdata.remote.url import is_url

__all__ = ["main", "prep_main"]

FORMATS = "; ".join(f"{kind.name}: {', '.join(kind.exports)}" for kind in KINDS)


class _Stored(click.Path):
    """A folder that exists, or a URL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if is_url(value) else super().convert(value, param, ctx)


STORE = click.argument("store", type=click.Path(exists=True, file_okay=False))
STORE_OR_URL = click.argument("store", type=_Stored(exists=True, file_okay=False))


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text.strip(), re.IGNORECASE)
    if found is None:
        raise click.BadParameter(f"{text!r} is not a size: give bytes, as 500000000, or with a unit, as 500MB, 1GB or 512MiB")
    number, unit, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(unit.lower() or " "))


@click.group(context_settings=SETTINGS)
@click.version_option(__version__)
def cli() -> None:
    """Prepare data once, then feed PyTorch models with compact batches as fast as the machine can."""


cli.add_command(doctor)
cli.add_command(prep)


@contextmanager
def _located(store: str, storage: dict[str, Any] | None) -> Iterator[Any]:
    """Yield what the commands read: a folder, or a store at a URL through a cache that goes afterwards."""
    from fastdata.remote.reader import locate

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        yield locate(store, cache if is_url(store) and not store.startswith("file:") else None, storage=storage)


@cli.command()
@STORE_OR_URL
@click.option("--json", "as_json", is_flag=True, help="Print all facts as one JSON object.")
@click.option("--sheet", type=File(".png"), help="Draw samples with masks, names and labels into this PNG.")
@click.option("--size", type=int, help="Stored size that the sheet shows. Default: the largest.")
@with_options((STORAGE,))
def info(store: str, as_json: bool, sheet: str | None, size: int | None, storage: dict[str, Any] | None) -> None:
    """Describe STORE, a folder or a URL: samples, samples per class, sizes, the memory that a RAMDataset takes, rejects, and how it
    was made."""
    from fastdata.report.sheet import draw_sheet
    from fastdata.store.info import info_lines, store_facts
    from fastdata.store.store import Store
    from fastdata.words import number_of

    if size is not None and sheet is None:
        raise click.UsageError("--size needs --sheet: add --sheet, or leave --size out")
    with _located(store, storage) as place:
        opened = Store(place, kind=None)
        for line in [json.dumps(store_facts(opened), indent=1)] if as_json else info_lines(opened):
            click.echo(line)
        if sheet is not None:
            click.echo(f"{number_of(draw_sheet(place, sheet, size=size), opened.kind.item)} drawn in {sheet}", err=as_json)


@cli.command()
@STORE
@click.option("--out", type=File(".html"), help="The page to write. Default: NAME-report.html in the working folder.")
def report(store: str, out: str | None) -> None:
    """Write an HTML page about a STORE: samples, classes, sizes, rejects, and how it was made."""
    from fastdata.report.page import store_page
    from fastdata.store.files import write_atomic
    from fastdata.words import human_bytes

    data = store_page(store).encode()
    target = Path(out or f"{Path(store).absolute().name.removesuffix('.fds')}-report.html")
    write_atomic(target, data, durable=False)
    click.echo(f"{target}: {human_bytes(len(data))}, complete in itself; open it in a browser")


@cli.command()
@STORE_OR_URL
@click.option("--quick", is_flag=True, help="Check sizes, tables and structure only.")
@with_options((STORAGE,))
def verify(store: str, quick: bool, storage: dict[str, Any] | None) -> None:
    """Check STORE, a folder or a URL, against its checksums. Print a line for each problem; exit with code 1 if there are any."""
    from tqdm import tqdm

    from fastdata.store.verify import verify
    from fastdata.words import number_of

    if quick and is_url(store):
        raise click.UsageError(f"--quick looks at files, but {store} is a URL: leave --quick out, which reads every byte")
    with tqdm(unit="B", unit_scale=True, disable=None) as bar, _located(store, storage) as place:
        problems = 0
        for problem in verify(place, quick=quick, tick=bar.update):
            problems += 1
            bar.write(problem, file=sys.stdout)
    if problems:
        click.echo(f"{store}: {number_of(problems, 'problem')}", err=True)
        sys.exit(1)
    click.echo(f"{store}: {'sizes, tables and structure are' if quick else 'every byte is'} as written")


@cli.command()
@click.argument("stores", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False), metavar="STORE...")
@click.argument("out", type=click.Path())
def merge(stores: tuple[str, ...], out: str) -> None:
    """Make one store, OUT, of several STOREs that were prepared with the same options. Their shards are linked where the file
    system can, and copied otherwise."""
    from fastdata.prepare.merge import merge
    from fastdata.store.store import Store
    from fastdata.words import number_of

    made = merge(stores, out)
    click.echo(f"{out}: {number_of(len(Store(made, kind=None)), 'sample')} of {len(stores)} stores")


@cli.command()
@STORE
@click.argument("url")
@with_options((STORAGE,))
def publish(store: str, url: str, storage: dict[str, Any] | None) -> None:
    """Copy STORE to a URL, such as s3://bucket/photos.fds, from which datasets read it through a cache."""
    from tqdm import tqdm

    from fastdata.remote.publish import publish

    with tqdm(unit="B", unit_scale=True, disable=None) as bar:
        publish(store, url, storage=storage, tick=bar.update)
    click.echo(f"{url} is a copy of {store}")


@cli.command()
@STORE_OR_URL
@click.argument("out", metavar="DIR", type=click.Path())
@click.option(
    "--to",
    type=click.Choice([to for kind in KINDS for to in kind.exports]),
    help=f"Format. {FORMATS}. Default: the first.",
)
@click.option("--size", type=int, help="Stored size. Default: the largest.")
@click.option("--shard-size", type=_bytes, metavar="SIZE", help="Largest size of a tar, such as 500MB. Default: 1GB.")
@click.option("--val-fraction", type=float, help="For nanogpt: share of tokens, from the end, for val.bin; 0: none. Default: 0.1.")
@with_options((STORAGE,))
def export(store: str, out: str, to: str | None, storage: dict[str, Any] | None, **options: Any) -> None:
    """Write the samples of STORE, a folder or a URL, to DIR as ordinary files: images in class folders or WebDataset tars, tokens
    as .bin, arrays as .npy."""
    from tqdm import tqdm

    from fastdata.store.export import export
    from fastdata.words import number_of

    with tqdm(unit="img", disable=None) as bar, _located(store, storage) as place:
        count = export(place, out, to=to, tick=bar.update, **options)
    click.echo(f"{number_of(count, 'sample' if to == 'webdataset' else 'file')} in {out}")


@cli.command()
@STORE
@click.option("--size", type=int, help="Stored size. Default: the largest.")
@click.option(
    "--crop", type=click.IntRange(1), help="Side of the random crops. Default: 224, or the images' shorter side if that is less."
)
@click.option("--batch-size", type=click.IntRange(1), help="Images per batch. Default: 64, or all if there are fewer.")
@click.option(
    "--workers",
    type=click.IntRange(0),
    multiple=True,
    help="Worker counts to try; may repeat. Default: 0, 1, 2, ... and the cores.",
)
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=3.0, show_default=True, help="Seconds per measurement.")
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Rounds; medians are reported.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON; the text goes to stderr.")
def bench(store: str, as_json: bool, **options: Any) -> None:
    """Measure images/s of the Loader on STORE, next to a plain DataLoader and this machine's decode limit."""
    from fastdata.bench.command import run_bench

    result = run_bench(store, echo=partial(click.echo, err=as_json), **options)
    if as_json:
        click.echo(json.dumps(result, indent=1, allow_nan=False))


def _guard(command: Callable[..., Any], name: str) -> None:
    """Run a command; turn errors into one line and an exit code."""
    try:
        for stream in (sys.stdout, sys.stderr):  # file names may not be UTF-8
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="surrogateescape")
        command(prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except (PrepError, ValueError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
    except (FastDataError, OSError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)


def main() -> None:
    """Run the `fastdata` command."""
    _guard(cli, "fastdata")


def prep_main() -> None:
    """Run the `fastdata-prep` command, which is the same as `fastdata prep`."""
    _guard(prep, "fastdata-prep")
