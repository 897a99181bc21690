"""The commands `fastdata` and `fastdata-prep`: arguments, output and exit codes. Torch is imported only where it is needed.

Exit codes: 0 success; 1 the store is broken, or a dry run finds too little disk space; 2 wrong use; 3 done, but with more rejects
than --max-reject-rate, in a dry run too; 130 interrupted; 143 ended by SIGTERM.
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
from typing import Any, ClassVar

import click

from fastdata import kinds
from fastdata._version import __version__
from fastdata.errors import FastDataError, PrepError
from fastdata.options import OptionInfo, as_option, options_of

__all__ = ["main", "prep_main"]

KINDS = [kinds.find(name) for name in kinds.names()]
FORMATS = "; ".join(f"{kind.says}: {', '.join(kind.exports)}" for kind in KINDS)
STORE = click.argument("store", type=click.Path(exists=True, file_okay=False))
SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}
RUN = "The run"
TITLES = ("Options", "Images", "Labels", "Masks", "Text", "Arrays", "Tables", RUN)
HELP_FOR = "fastdata.help-for"
SOURCES = (
    "SOURCE is a folder with one folder per class, a flat folder, a table of paths and labels (.csv, .tsv, .jsonl, .parquet), or "
    "archives: WebDataset tars ('shards-{000..099}.tar'), Parquet, .arrow, MosaicML Streaming's and LitData's folders, idx, "
    "CIFAR's batches, HDF5 (file.h5::dataset), LMDB. Or, with --tokenizer or --train-bpe, a folder or file of text: .txt, .jsonl, "
    ".parquet, also .gz or .zst. With --target, a table: .parquet, .arrow, .csv or .tsv. Or arrays: .npy, .npz, NIfTI, DICOM "
    "series."
)
COLORS = {"white": (255, 255, 255), "black": (0, 0, 0), "gray": (128, 128, 128)}


def _position(title: str) -> int:
    """Return the position of a group of options in help; groups of other packages' kinds precede the run's."""
    return TITLES.index(title) if title in TITLES else len(TITLES) - 2


class _Prep(click.Command):
    """A command whose help shows a few options, those of a kind, or all options in groups."""

    shown: ClassVar[dict[str, tuple[str, bool, tuple[str, ...]]]] = {}  # option -> its group, whether short help has it, its kinds

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        if HELP_FOR in ctx.meta:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(SOURCES)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        wanted = ctx.meta.get(HELP_FOR)
        groups = dict[str, list[tuple[str, str]]]()
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None  # the usage line shows the arguments
            group, common, owners = self.shown.get(param.name or "", (RUN, False, ()))
            if record is None or (not common if wanted is None else wanted != "all" and wanted not in owners and group != RUN):
                continue
            if wanted is None:
                group = "Options"
                record = record[0], re.split(r"(?<=[^.])\.(?: |$)|;|  \[", record[1])[0] + "."  # the first sentence
            groups.setdefault(group, []).append(record)
        for title in sorted(groups, key=_position):
            with formatter.section(title):
                formatter.write_dl(groups[title])


def _color(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if text not in COLORS and (len(parts) != 3 or not all(p.strip().isdigit() and int(p) < 256 for p in parts)):
        raise click.BadParameter(
            f"{text!r} is not a colour: give three numbers from 0 to 255, as 255,255,255, or {', '.join(COLORS)}"
        )
    return COLORS.get(text) or tuple(map(int, parts))


def _sides(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) for part in parts):
        raise click.BadParameter(f"{text!r} is not a box: give a positive number for each axis, such as 64,64,64")
    return tuple(map(int, parts))


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text.strip(), re.IGNORECASE)
    if found is None:
        raise click.BadParameter(f"{text!r} is not a size: give bytes, as 500000000, or with a unit, as 500MB, 1GB or 512MiB")
    number, unit, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(unit.lower() or " "))


class _Png(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).lower().endswith(".png"):
            self.fail(f"{str(value)!r} does not end in .png: give the name of a PNG file", param, ctx)
        return super().convert(value, param, ctx)


TYPES: dict[str, Any] = {
    "text": str,
    "int": int,
    "path": click.Path(),
    "file": click.Path(exists=True, dir_okay=False),
    "folder": click.Path(exists=True, file_okay=False),
    "color": _color,
    "sides": _sides,
}
METAVARS = {"color": "R,G,B", "sides": "N,N,N"}


def _run_option(name: str, *, common: bool = False, **options: Any) -> Callable[[Any], Any]:
    """Make an option of the run itself."""
    _Prep.shown[name.removeprefix("--").replace("-", "_")] = RUN, common, ()
    return click.option(name, **options)


def _options_of_kinds(command: Any) -> Any:
    """Add the options of every kind of data, from their dataclasses."""
    options = dict[str, Any]()
    for kind in KINDS:
        for key, field in options_of(kind.options).items():
            info: OptionInfo = field.metadata["said"]
            group, common, owners = _Prep.shown.get(key, (info.group or kind.options.__doc__ or kind.name, info.common, ()))
            _Prep.shown[key] = group, common, (*owners, kind.name)
            options.setdefault(key, _click_option(key, info, field.default))
    for add in reversed([options[key] for key in sorted(options, key=lambda key: _position(_Prep.shown[key][0]))]):
        command = add(command)
    return command


def _click_option(key: str, info: OptionInfo, default: Any) -> Callable[[Any], Any]:
    if info.type == "flag":
        return click.option(as_option(key), is_flag=True, help=info.help)
    choices = info.choices and info.type == "text"
    shown = "white" if info.type == "color" else default
    return click.option(
        as_option(key),
        type=click.Choice(list(info.choices)) if choices else TYPES[info.type],
        default=None if info.several else shown,
        multiple=info.several,
        metavar=info.metavar or METAVARS.get(info.type),
        help=info.help,
    )


def _show_help(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Print help with more options than --help shows."""
    if value:
        ctx.meta[HELP_FOR] = "all" if value is True else value
        click.echo(ctx.get_help())
        ctx.exit()


@click.group(context_settings=SETTINGS)
@click.version_option(__version__)
def cli() -> None:
    """Prepare data once, then feed PyTorch models with compact batches as fast as the machine can."""


@cli.command(cls=_Prep, context_settings=SETTINGS)
@click.version_option(__version__)
@click.argument("source", type=click.Path())
@click.argument("out", type=click.Path(), required=False)
@_options_of_kinds
@_run_option("--kind", type=click.Choice([kind.name for kind in KINDS]), help="Kind of data. Default: found from the files.")
@_run_option(
    "--limit",
    type=int,
    help="Prepare only so many inputs. Images and arrays are evenly spaced; documents and rows are the first.",
    common=True,
)
@_run_option("--workers", type=int, help="Worker processes. Default: one per core.")
@_run_option("--dry-run", is_flag=True, help="Estimate size and time without writing anything.", common=True)
@_run_option("--overwrite", is_flag=True, help="Replace a store made with other options.", common=True)
@_run_option("--max-reject-rate", type=float, default=0.01, help="Exit with code 3 if a larger share of the inputs is rejected.")
@_run_option("--timeout", type=float, default=60.0, help="Seconds after which a decoder counts as hanging.")
@_run_option("--progress", type=click.Choice(["auto", "plain", "json", "off"]), default="auto", help="How to show progress.")
@_run_option(
    "--help-all", is_flag=True, expose_value=False, is_eager=True, callback=_show_help, help="Show all options.", common=True
)
@_run_option(
    "--help-for",
    type=click.Choice([kind.name for kind in KINDS]),
    expose_value=False,
    is_eager=True,
    callback=_show_help,
    help="Show the options of one kind of data.",
    common=True,
)
def prep(dry_run: bool, max_reject_rate: float, **options: Any) -> None:
    """Make a store from SOURCE: images, text, arrays or a table. OUT defaults to the name of SOURCE + ".fds" in the working folder.
    To continue after an interruption, run the same command again.
    """
    from fastdata.prepare import report
    from fastdata.prepare.estimate import estimate
    from fastdata.prepare.job import prep

    options = {name: None if value == () else value for name, value in options.items()}  # (): a repeatable option that is absent
    if dry_run:
        for run_only in ("overwrite", "timeout", "progress"):
            options.pop(run_only)
        found = estimate(**options)
        for line in report.estimate_lines(found):
            click.echo(line)
        if sum(found.rejected.values()) > max_reject_rate * found.probes:
            click.echo(f"more than {max_reject_rate:.2%} of the tried inputs are rejected; --max-reject-rate allows more", err=True)
            sys.exit(3)
        sys.exit(0 if found.fits else 1)
    try:
        with _terminable():
            summary = prep(**options)
    except KeyboardInterrupt as error:
        command = shlex.join(["fastdata-prep", *_arguments()])
        click.echo(f"\ninterrupted; finished work is kept. To continue: {command}", err=True)
        sys.exit(143 if isinstance(error, _Terminated) else 130)
    for line in report.summary_lines(summary):
        click.echo(line)
    if summary.reject_rate > max_reject_rate:
        rejects = summary.out / "rejects.jsonl"
        click.echo(
            f"more than {max_reject_rate:.2%} of the inputs were rejected: see {rejects}; --max-reject-rate allows more", err=True
        )
        sys.exit(3)


class _Terminated(KeyboardInterrupt):
    """SIGTERM."""


@contextmanager
def _terminable() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C. Ignore further ones: `timeout` sends two."""

    def terminate(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: a handler set outside Python


def _arguments() -> list[str]:
    return sys.argv[2:] if click.get_current_context().info_name == "prep" else sys.argv[1:]


@cli.command()
@STORE
@click.option("--json", "as_json", is_flag=True, help="Print all facts as one JSON object.")
@click.option("--sheet", type=_Png(dir_okay=False), help="Draw samples with masks, names and labels into this PNG.")
@click.option("--size", type=int, help="Stored size that the sheet shows. Default: the largest.")
def info(store: str, as_json: bool, sheet: str | None, size: int | None) -> None:
    """Describe STORE: samples, samples per class, sizes, the memory that a RAMDataset takes, rejects, and how it was made."""
    from fastdata.store.contact_sheet import draw_sheet
    from fastdata.store.info import store_facts
    from fastdata.store.info_lines import info_lines
    from fastdata.store.store import Store

    if size is not None and sheet is None:
        raise click.UsageError("--size needs --sheet: add --sheet, or leave --size out")
    opened = Store(store, kind=None)
    for line in [json.dumps(store_facts(opened), indent=1)] if as_json else info_lines(opened):
        click.echo(line)
    if sheet is not None:
        click.echo(f"{draw_sheet(store, sheet, size=size)} {opened.kind.drawn} drawn in {sheet}", err=as_json)


@cli.command()
@STORE
@click.option("--quick", is_flag=True, help="Check sizes, tables and structure only.")
def verify(store: str, quick: bool) -> None:
    """Check STORE against its checksums. Print a line for each problem, and exit with code 1 if there are any."""
    from tqdm import tqdm

    from fastdata.store.verify import verify
    from fastdata.words import number_of

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
@click.argument("url")
def publish(store: str, url: str) -> None:
    """Copy STORE to a URL, such as s3://bucket/photos.fds, from which datasets read it through a cache."""
    from tqdm import tqdm

    from fastdata.remote.publish import publish

    with tqdm(unit="B", unit_scale=True, disable=None) as bar:
        publish(store, url, tick=bar.update)
    click.echo(f"{url} is a copy of {store}")


@cli.command()
@STORE
@click.argument("out", metavar="DIR", type=click.Path())
@click.option(
    "--to",
    type=click.Choice([to for kind in KINDS for to in kind.exports]),
    help=f"Format. {FORMATS}. Default: the first.",
)
@click.option("--size", type=int, help="Stored size. Default: the largest.")
@click.option("--shard-size", type=_bytes, metavar="SIZE", help="Largest size of a tar, such as 500MB. Default: 1GB.")
@click.option("--val-fraction", type=float, help="For nanogpt: share of tokens, from the end, for val.bin; 0: none. Default: 0.1.")
def export(store: str, out: str, to: str | None, **options: Any) -> None:
    """Write the samples of STORE to DIR as ordinary files: images in class folders, in WebDataset tars, or with COCO annotations;
    tokens as .bin, arrays as .npy, a table as Parquet."""
    from tqdm import tqdm

    from fastdata.store.export import export
    from fastdata.words import number_of

    with tqdm(unit="img", disable=None) as bar:
        count = export(store, out, to=to, tick=bar.update, **options)
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
@click.option("--plot", type=_Png(dir_okay=False), help="Draw the results into this PNG (needs matplotlib).")
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
