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
from typing import Any, ClassVar

import click

from fastdata import kinds
from fastdata._version import __version__
from fastdata.errors import FastDataError, PrepError
from fastdata.options import Said, as_option, options_of

__all__ = ["main", "prep_main"]

KINDS = [kinds.find(name) for name in kinds.names()]
FORMATS = "; ".join(f"{kind.says}: {', '.join(kind.exports)}" for kind in KINDS)
STORE = click.argument("store", type=click.Path(exists=True, file_okay=False))
SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}
RUN = "The run"
TITLES = ("Options", "Images", "Labels", "Masks", "Text", "Arrays", "Tables", RUN)
HELP_FOR = "fastdata.help-for"
SOURCES = (
    "SOURCE is a folder with one folder per class, a flat folder, a CSV/TSV file of path,label, or archives: WebDataset tars "
    "('shards-{000..099}.tar'), Parquet, .arrow, MosaicML Streaming's and LitData's folders, idx, CIFAR's batches, HDF5 "
    "(file.h5::dataset), LMDB. Or, with --tokenizer or --train-bpe, a folder or file of text: .txt, .jsonl, .parquet, also .gz or "
    ".zst. With --target, a table: .parquet, .arrow, .csv or .tsv. Or arrays: .npy, .npz, NIfTI, DICOM series."
)
COLORS = {"white": (255, 255, 255), "black": (0, 0, 0), "gray": (128, 128, 128)}


def _place(title: str) -> int:
    """Of a group of options, in help; those of other packages' kinds come before the run's."""
    return TITLES.index(title) if title in TITLES else len(TITLES) - 2


class _Prep(click.Command):
    """A command whose help shows a few options, or those of a kind, or all of them in groups."""

    said: ClassVar[dict[str, tuple[str, bool, tuple[str, ...]]]] = {}  # of each option: its group, whether all see it, its kinds

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        if HELP_FOR in ctx.meta:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(SOURCES)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        wanted, groups = ctx.meta.get(HELP_FOR), dict[str, list[tuple[str, str]]]()
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None  # the usage line shows the arguments
            group, common, owners = self.said.get(param.name or "", (RUN, False, ()))
            if record is None or (not common if wanted is None else wanted != "all" and wanted not in owners and group != RUN):
                continue
            if wanted is None:
                group, record = "Options", (record[0], re.split(r"(?<=[^.])\.(?: |$)|;|  \[", record[1])[0] + ".")
            groups.setdefault(group, []).append(record)
        for title in sorted(groups, key=_place):
            with formatter.section(title):
                formatter.write_dl(groups[title])


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


TYPES: dict[str, Callable[[], Any]] = {
    "text": lambda: str,
    "int": lambda: int,
    "path": click.Path,
    "file": lambda: click.Path(exists=True, dir_okay=False),
    "folder": lambda: click.Path(exists=True, file_okay=False),
    "color": _Color,
    "sides": _Sides,
}


def _of_the_run(name: str, *, common: bool = False, **options: Any) -> Callable[[Any], Any]:
    """Make an option that is about the run."""
    _Prep.said[name.removeprefix("--").replace("-", "_")] = RUN, common, ()
    return click.option(name, **options)


def _options_of_kinds(command: Any) -> Any:
    """Add the options of every kind of data, as their dataclasses say them."""
    made = dict[str, Any]()
    for kind in KINDS:
        for key, field in options_of(kind.options).items():
            said: Said = field.metadata["said"]
            group, common, owners = _Prep.said.get(key, (said.group or kind.options.__doc__ or kind.name, said.common, ()))
            _Prep.said[key] = group, common, (*owners, kind.name)
            made.setdefault(key, _click_option(key, said, field.default))
    for add in reversed([made[key] for key in sorted(made, key=lambda key: _place(_Prep.said[key][0]))]):
        command = add(command)
    return command


def _click_option(key: str, said: Said, default: Any) -> Callable[[Any], Any]:
    if said.type == "flag":
        return click.option(as_option(key), is_flag=True, help=said.help)
    choices = said.choices and said.type == "text"
    shown = "white" if said.type == "color" else default
    return click.option(
        as_option(key),
        type=click.Choice(list(said.choices)) if choices else TYPES[said.type](),
        default=None if said.several else shown,
        multiple=said.several,
        metavar=said.metavar,
        help=said.help,
    )


def _show_help(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Print help with more options than `--help` shows."""
    if value:
        ctx.meta[HELP_FOR] = "all" if value is True else value
        click.echo(ctx.get_help())
        ctx.exit()


@click.group(context_settings=SETTINGS)
@click.version_option(__version__)
def cli() -> None:
    """Feeds PyTorch models: photos become compact bytes once, then uint8 batches at the speed of the machine."""


@cli.command(cls=_Prep, context_settings=SETTINGS)
@click.version_option(__version__)
@click.argument("source", type=click.Path())
@click.argument("out", type=click.Path(), required=False)
@_options_of_kinds
@_of_the_run("--kind", type=click.Choice([kind.name for kind in KINDS]), help="Default: what the files are.")
@_of_the_run(
    "--limit",
    type=int,
    help="Prepare this many images or arrays only, evenly spaced; or the first documents, or rows.",
    common=True,
)
@_of_the_run("--workers", type=int, help="Processes. Default: one a core.")
@_of_the_run("--dry-run", is_flag=True, help="Estimate size and time, write nothing.", common=True)
@_of_the_run("--overwrite", is_flag=True, help="Replace a store of other options.", common=True)
@_of_the_run("--max-reject-rate", type=float, default=0.01, help="Exit code 3 above this share of rejects.")
@_of_the_run("--timeout", type=float, default=60.0, help="Seconds after which an input counts as hanging its decoder.")
@_of_the_run("--progress", type=click.Choice(["auto", "plain", "json", "off"]), default="auto", help="What to show meanwhile.")
@_of_the_run(
    "--help-all", is_flag=True, expose_value=False, is_eager=True, callback=_show_help, help="Show all options.", common=True
)
@_of_the_run(
    "--help-for",
    type=click.Choice([kind.name for kind in KINDS]),
    expose_value=False,
    is_eager=True,
    callback=_show_help,
    help="Show the options of one kind of data.",
    common=True,
)
def prep(dry_run: bool, max_reject_rate: float, **given: Any) -> None:
    """Make a store of SOURCE: images, text, arrays or a table. OUT defaults to the name of SOURCE + ".fds", here. Run the same
    command again after an interruption, and it goes on.
    """
    from fastdata.prepare import report
    from fastdata.prepare.estimate import estimate
    from fastdata.prepare.job import prep

    given = {name: None if value == () else value for name, value in given.items()}  # options that may repeat, and do not
    if dry_run:
        for run_only in ("overwrite", "timeout", "progress"):
            given.pop(run_only)
        found = estimate(**given)
        for line in report.estimate_lines(found):
            click.echo(line)
        if sum(found.rejected.values()) > max_reject_rate * found.probes:
            click.echo(f"more than {max_reject_rate:.2%} of what was tried is rejected; --max-reject-rate allows more", err=True)
            sys.exit(3)
        sys.exit(0 if found.fits else 1)
    try:
        with _terminable():
            summary = prep(**given)
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
    from fastdata.store.contact_sheet import draw_sheet
    from fastdata.store.info import store_facts
    from fastdata.store.info_lines import info_lines
    from fastdata.store.store import Store

    if size is not None and sheet is None:
        raise click.UsageError("--size is about the sheet: give --sheet as well, or leave --size out")
    opened = Store(store, kind=None)
    for line in [json.dumps(store_facts(opened), indent=1)] if as_json else info_lines(opened):
        click.echo(line)
    if sheet is not None:
        click.echo(f"{draw_sheet(store, sheet, size=size)} {opened.kind.drawn} drawn in {sheet}", err=as_json)


@cli.command()
@STORE
@click.option("--quick", is_flag=True, help="Check sizes, tables and structure only.")
def verify(store: str, quick: bool) -> None:
    """Check STORE against its checksums; exit code 1 and a line for each thing that is wrong."""
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
@click.argument("out", metavar="DIR", type=click.Path())
@click.option(
    "--to",
    type=click.Choice([to for kind in KINDS for to in kind.exports]),
    help=f"{FORMATS}. Default: the first.",
)
@click.option("--size", type=int, help="Which stored size. Default: the largest.")
@click.option("--shard-size", type=_Bytes(), help="Of tars: none is larger, such as 500MB. Default: 1GB.")
@click.option("--val-fraction", type=float, help="To nanogpt: the last part of the tokens, for val.bin; 0: none. Default: 0.1.")
def export(store: str, out: str, to: str | None, **options: Any) -> None:
    """Write the samples of STORE to DIR as ordinary files: images in class folders or as WebDataset tars, tokens as .bin,
    arrays as .npy, a table as Parquet."""
    from tqdm import tqdm

    from fastdata.store.export import export
    from fastdata.words import number_of

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
