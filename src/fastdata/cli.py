"""The `fastdata` command, and `fastdata-prep`: arguments, printing and exit codes. Nothing here imports torch before it must.

Exit codes: 0 fine; 1 the thing asked about is broken, or a dry run finds too little room; 2 wrong use; 3 done, but more rejects
than --max-reject-rate, also among what a dry run tries; 130 interrupted, 143 by SIGTERM.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import click

from fastdata._version import __version__
from fastdata.errors import FastDataError, PrepError

__all__ = ["main", "prep_main"]

STORE = click.argument("store", type=click.Path(exists=True, file_okay=False))
SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}
GROUPS = {  # of prep's options, by the first of each
    "--size": "Images",
    "--labels": "Labels",
    "--masks": "Masks",
    "--tokenizer": "Text",
    "--chunk": "Arrays",
    "--target": "Tables",
    "--kind": "The run",
}
COLORS = {"white": (255, 255, 255), "black": (0, 0, 0), "gray": (128, 128, 128)}


class _Grouped(click.Command):
    """A command whose help shows its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        title, groups = "Options", dict[str, list[tuple[str, str]]]()
        for param in self.get_params(ctx):
            title = GROUPS.get(param.opts[0], title)
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None  # the usage line shows the arguments
            if record is not None:
                groups.setdefault(title, []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


class _Color(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    name = "R,G,B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int, int]:
        if isinstance(value, tuple) or value in COLORS:
            return COLORS.get(value, value)  # type: ignore[no-any-return]
        parts = value.split(",")
        if len(parts) != 3 or not all(p.strip().isdigit() and int(p) < 256 for p in parts):
            self.fail(
                f"{value!r} is not a colour: give three numbers from 0 to 255, as 255,255,255, or {', '.join(COLORS)}", param, ctx
            )
        return int(parts[0]), int(parts[1]), int(parts[2])


class _Sides(click.ParamType):  # type: ignore[type-arg]
    name = "N,N,N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = value.split(",")
        if not all(part.strip().isdigit() and int(part) for part in parts):
            self.fail(f"{value!r} are no sides of a box: give a positive number for each axis, such as 64,64,64", param, ctx)
        return tuple(map(int, parts))


class _Bytes(click.ParamType):  # type: ignore[type-arg]
    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", str(value).strip(), re.IGNORECASE)
        if found is None:
            self.fail(f"{value!r} is no size: give bytes, as 500000000, or with a unit, as 500MB, 1GB or 512MiB", param, ctx)
        number, unit, binary = found.groups()
        return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(unit.lower() or " "))


class _Png(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).lower().endswith(".png"):
            self.fail(f"{str(value)!r} is to be a PNG, but does not end in .png: name it so", param, ctx)
        return super().convert(value, param, ctx)


@click.group(context_settings=SETTINGS)
@click.version_option(__version__)
def cli() -> None:
    """Feeds PyTorch models: photos become compact bytes once, then uint8 batches at the speed of the machine."""


@cli.command(cls=_Grouped, context_settings=SETTINGS)
@click.version_option(__version__)
@click.argument("source", type=click.Path())
@click.argument("out", type=click.Path(), required=False)
@click.option("--size", type=int, multiple=True, help="Side in pixels; may repeat. Default: each image keeps its own.")
@click.option("--resize", type=click.Choice(["short", "long", "crop", "stretch"]), default="short", help="What becomes SIZE.")
@click.option("--upscale", is_flag=True, help="Enlarge smaller images, which otherwise keep their size.")
@click.option(
    "--codec",
    type=click.Choice(["jpeg", "original", "rgb", "png", "yuv420"]),
    default="jpeg",
    help="How images are stored; original: JPEG files that need no change keep their bytes.",
)
@click.option("--quality", type=int, default=90, help="Of JPEG, 1 to 100.")
@click.option("--gray", is_flag=True, help="Store one channel.")
@click.option("--bits", type=int, default=8, help="8, or 16 for uint16 pixels (codec rgb or png).")
@click.option("--background", type=_Color(), default="white", help="Colour beneath transparent pixels.")
@click.option("--max-pixels", type=int, default=1 << 28, help="Reject larger images before decoding them.")
@click.option(
    "--labels",
    type=click.Path(exists=True, dir_okay=False),
    help="CSV of paths and labels: numbers are floats, names are classes.",
)
@click.option("--classes", type=click.Path(exists=True, file_okay=False), help="Use the class list of this store.")
@click.option(
    "--label-from", metavar="REGEX", help=r"The class is what the one group of this finds in each path, such as '(n\d+)_'."
)
@click.option(
    "--label-column",
    multiple=True,
    metavar="COLUMN",
    help="Of a CSV or archive: where labels are; none: no labels. May repeat.",
)
@click.option("--root", type=click.Path(exists=True, file_okay=False), help="The folder that a CSV's paths are relative to.")
@click.option("--split", metavar="NAME", help="Of a CSV with a column split: take these rows.")
@click.option("--masks", type=click.Path(exists=True, file_okay=False), help="A folder with a mask for each image.")
@click.option("--mask-suffix", default="", help="What masks are called beyond their images, before the ending.")
@click.option("--mask-bits", type=int, default=8, help="8 for classes up to 255, or 16.")
@click.option("--palette", type=click.Path(exists=True, dir_okay=False), help="Of colour masks: lines of red, green, blue, class.")
@click.option(
    "--tokenizer",
    metavar="NAME_OR_FILE",
    help="SOURCE is text: a tokenizer.json, a .model, a name of tiktoken's, a store whose tokenizer to use, bytes, or chars.",
)
@click.option("--train-bpe", type=int, metavar="VOCAB", help="SOURCE is text: train a BPE of this many tokens on it.")
@click.option("--end-token", metavar="TOKEN", help="Behind each document: a token, its id, or none. Default: the tokenizer's own.")
@click.option("--split-lines", is_flag=True, help="Each line of a .txt file is a document.")
@click.option("--split-on", metavar="TEXT", help="What stands between the documents of a .txt file.")
@click.option("--field", default="text", help="Of .jsonl and .parquet: what holds the text.")
@click.option("--chunk", type=_Sides(), help="Of arrays: sides of the boxes that they are stored in.")
@click.option(
    "--channels", type=click.Choice(["none", "first", "last"]), default="none", help="Of arrays: which axis is of channels."
)
@click.option("--key", help="Of .npz files: which array. Default: each is a sample.")
@click.option("--dtype", help="Of arrays. Default: the first one's.")
@click.option("--max-bytes", type=int, default=1 << 32, help="Reject larger arrays before reading them.")
@click.option("--target", multiple=True, metavar="COLUMN", help="SOURCE is a table: what is to be learnt; may repeat for numbers.")
@click.option(
    "--category", multiple=True, metavar="COLUMN", help="Its values are names, though they look like numbers; may repeat."
)
@click.option("--drop", multiple=True, metavar="COLUMN", help="A column of the table to leave out; may repeat.")
@click.option("--kind", type=click.Choice(["images", "arrays", "tokens", "table"]), help="Default: what the files are.")
@click.option("--limit", type=int, help="Prepare this many images or arrays only, evenly spaced; or the first documents, or rows.")
@click.option("--workers", type=int, help="Processes. Default: one a core.")
@click.option("--dry-run", is_flag=True, help="Estimate size and time, write nothing.")
@click.option("--overwrite", is_flag=True, help="Replace a store of other options.")
@click.option("--max-reject-rate", type=float, default=0.01, help="Exit code 3 above this share of rejects.")
@click.option("--timeout", type=float, default=60.0, help="Seconds after which an image counts as hanging its decoder.")
@click.option("--progress", type=click.Choice(["auto", "plain", "json", "off"]), default="auto", help="What to show meanwhile.")
def prep(dry_run: bool, max_reject_rate: float, size: tuple[int, ...], **given: Any) -> None:
    """Make a store of SOURCE: a folder with one folder per class, a flat folder, a CSV/TSV file of path,label, or archives:
    WebDataset tars ('shards-{000..099}.tar'), Parquet, .arrow, MosaicML Streaming's and LitData's folders, idx, CIFAR's batches,
    HDF5 (file.h5::dataset), LMDB. Or, with --tokenizer or --train-bpe, a folder or file of text: .txt, .jsonl, .parquet, also .gz
    or .zst. With --target, a table: .parquet, .arrow, .csv or .tsv. Or arrays: .npy, .npz, NIfTI, DICOM series.

    OUT defaults to the name of SOURCE + ".fds", here. Run the same command again after an interruption, and it goes on.
    """
    from fastdata.prepare import report
    from fastdata.prepare.estimate import estimate
    from fastdata.prepare.job import prep

    given = {name: None if value == () else value for name, value in given.items()}  # options that may repeat, and do not
    if dry_run:
        for run_only in ("overwrite", "timeout", "progress"):
            given.pop(run_only)
        found = estimate(size=size or None, **given)
        for line in report.estimate_lines(found):
            click.echo(line)
        if sum(found.rejected.values()) > max_reject_rate * found.probes:
            click.echo(f"more than {max_reject_rate:.2%} of what was tried is rejected; --max-reject-rate allows more", err=True)
            sys.exit(3)
        sys.exit(0 if found.fits else 1)
    try:
        with _terminable():
            summary = prep(size=size or None, **given)
    except KeyboardInterrupt as error:
        click.echo(f"\ninterrupted; what is finished is kept. To go on: {shlex.join(['fastdata-prep', *_arguments()])}", err=True)
        sys.exit(143 if isinstance(error, _Terminated) else 130)
    for line in report.summary_lines(summary):
        click.echo(line)
    if summary.reject_rate > max_reject_rate:
        said = f"more than {max_reject_rate:.2%} of the inputs were rejected: see {summary.out / 'rejects.jsonl'}"
        click.echo(f"{said}; --max-reject-rate allows more", err=True)
        sys.exit(3)


class _Terminated(KeyboardInterrupt):
    """SIGTERM."""


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM acts as Ctrl-C does. Further ones are ignored meanwhile: `timeout` sends two."""

    def terminate(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: not from Python


def _arguments() -> list[str]:
    return sys.argv[2:] if click.get_current_context().info_name == "prep" else sys.argv[1:]


@cli.command()
@STORE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with everything that there is to say.")
@click.option("--sheet", type=_Png(dir_okay=False), help="Draw what it holds, with masks, names and labels, as this PNG.")
@click.option("--size", type=int, help="Which stored size the sheet shows. Default: the largest.")
def info(store: str, as_json: bool, sheet: str | None, size: int | None) -> None:
    """Say what is in STORE: samples, classes and how many each has, sizes, the memory that a RAMDataset would take, rejects, and
    how it was made."""
    from fastdata.store.info import store_facts
    from fastdata.store.info_lines import info_lines
    from fastdata.store.sheet import draw_sheet
    from fastdata.store.store import Store

    if size is not None and sheet is None:
        raise click.UsageError("--size is about the sheet: give --sheet as well, or leave --size out")
    opened = Store(store, kind=None)
    for line in [json.dumps(store_facts(opened), indent=1)] if as_json else info_lines(opened):
        click.echo(line)
    if sheet is not None:
        drawn = {"tokens": "documents", "table": "columns"}.get(opened.manifest.kind, "samples")
        click.echo(f"{draw_sheet(store, sheet, size=size)} {drawn} drawn in {sheet}", err=as_json)


@cli.command()
@STORE
@click.option("--quick", is_flag=True, help="Check sizes, tables and structure only.")
def verify(store: str, quick: bool) -> None:
    """Check STORE against its checksums; exit code 1 and a line for each thing that is wrong."""
    from tqdm import tqdm

    from fastdata.store.info_lines import number_of
    from fastdata.store.verify import verify

    with tqdm(unit="B", unit_scale=True, disable=None) as bar:
        problems = 0
        for problem in verify(store, quick=quick, tick=bar.update):
            problems += 1
            bar.write(problem, file=sys.stdout)
    if problems:
        click.echo(f"{store}: {number_of(problems, 'problem')}", err=True)
        sys.exit(1)
    click.echo(f"{store}: {'sizes, tables and structure are' if quick else 'every byte is'} as written")


@cli.command()
@STORE
@click.argument("out", metavar="DIR", type=click.Path())
@click.option(
    "--to",
    type=click.Choice(["imagefolder", "webdataset", "nanogpt", "llmc", "megatron", "npy", "parquet"]),
    help="Images: imagefolder (the default), or webdataset. Tokens: nanogpt (the default), llmc or megatron. Arrays: npy. "
    "Tables: parquet.",
)
@click.option("--size", type=int, help="Which stored size. Default: the largest.")
@click.option("--shard-size", type=_Bytes(), help="Of tars: none is larger, such as 500MB. Default: 1GB.")
@click.option("--val-fraction", type=float, help="To nanogpt: the last part of the tokens, for val.bin; 0: none. Default: 0.1.")
def export(store: str, out: str, to: str | None, **options: Any) -> None:
    """Write the samples of STORE to DIR as ordinary files: images in class folders or as WebDataset tars, tokens as .bin,
    arrays as .npy, a table as Parquet."""
    from tqdm import tqdm

    from fastdata.store.export import export
    from fastdata.store.info_lines import number_of

    with tqdm(unit="img", disable=None) as bar:
        count = export(store, out, to=to, tick=bar.update, **options)
    click.echo(f"{number_of(count, 'sample' if to == 'webdataset' else 'file')} in {out}")


@cli.command()
@STORE
@click.option("--size", type=int, help="Which stored size. Default: the largest.")
@click.option(
    "--crop", type=click.IntRange(1), help="Side of the random crops. Default: 224, or the images' shorter side if that is less."
)
@click.option("--batch-size", type=click.IntRange(1), help="Images of a batch. Default: 64, or all if there are fewer.")
@click.option(
    "--workers",
    type=click.IntRange(0),
    multiple=True,
    help="Worker counts to try; may repeat. Default: 0, 1, 2, ... and the cores.",
)
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=3.0, show_default=True, help="Per measurement.")
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Rounds; medians are reported.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON; the text goes to stderr.")
@click.option("--plot", type=_Png(dir_okay=False), help="Draw them as this PNG (needs matplotlib).")
def bench(store: str, as_json: bool, **options: Any) -> None:
    """Measure images/s of the Loader on STORE, beside a plain DataLoader and the decode limit of this machine."""
    from fastdata.bench.command import run_bench

    result = run_bench(store, echo=partial(click.echo, err=as_json), **options)
    if as_json:
        click.echo(json.dumps(result, indent=1, allow_nan=False))


def _guard(command: Callable[..., Any], name: str) -> None:
    """Run a command; errors become one line and an exit code."""
    try:
        for stream in (sys.stdout, sys.stderr):  # file names need not be UTF-8
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
    """The `fastdata` command."""
    _guard(cli, "fastdata")


def prep_main() -> None:
    """The `fastdata-prep` command, the same as `fastdata prep`."""
    _guard(prep, "fastdata-prep")
