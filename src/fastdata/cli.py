"""The commands `fastdata` and `fastdata-prep`: arguments, output and exit codes. Torch is imported only where it is needed.

Exit codes: 0 success; 2 wrong use; 3 done, but a share above --max-reject-rate was rejected; 130 interrupted, or ended
by SIGTERM; 1 any other error.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fastdata import kinds
from fastdata._version import __version__
from fastdata.errors import FastDataError, PrepError
from fastdata.options import as_option, options_of
from fastdata.remote.bucket import is_url, parse_bytes, parse_storage
from fastdata.words import human_bytes, number_of

if TYPE_CHECKING:
    from fastdata.prepare.finish import Summary

SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}
KINDS = [kinds.find(name) for name in kinds.NAMES]
FORMATS = "; ".join(f"{kind.name}: {', '.join(kind.exports)}" for kind in KINDS)
FIELDS: dict[str, tuple[Any, str]] = {}  # option of a kind of data -> its field, and the title above it in help
for _kind in KINDS:
    for _key, _field in options_of(_kind.options).items():
        FIELDS.setdefault(_key, (_field, _field.metadata["group"] or _kind.options.__doc__ or _kind.name))
TITLES = ("Images", "Labels", "Masks", "Text", "Arrays", "The run")


class _Stored(click.Path):
    """A path that exists, or a URL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if is_url(value) else super().convert(value, param, ctx)


STORE = click.argument("store", type=click.Path(exists=True, file_okay=False))
STORE_OR_URL = click.argument("store", type=_Stored(exists=True, file_okay=False))
STORAGE = click.option(
    "--storage",
    multiple=True,
    metavar="KEY=VALUE",
    callback=lambda ctx, param, value: parse_storage(value) or None,
    help="Option of the client for URLs, such as endpoint, region or anonymous=true. May repeat. Default: from the environment, "
    "where secrets belong too.",
)


@click.group(context_settings=SETTINGS)
@click.version_option(__version__)
def cli() -> None:
    """Prepare data once, then feed PyTorch models with compact batches as fast as the machine can."""


# Preparing


class _Grouped(click.Command):
    """A command whose help shows its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in TITLES}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None  # the usage line shows the arguments
            if record:
                groups[FIELDS.get(param.name or "", (None, TITLES[-1]))[1]].append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _sides(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) for part in parts):
        raise click.BadParameter(f"{text!r} is not a list of sides: give a positive number for each axis, such as 64,64,64")
    return tuple(map(int, parts))


TYPES: dict[str, Any] = {
    "text": str,
    "int": int,
    "path": click.Path(),
    "file": _Stored(exists=True, dir_okay=False),
    "folder": _Stored(exists=True, file_okay=False),
    "sides": _sides,
}


def _click_option(key: str, field: Any) -> Callable[[Any], Any]:
    """Return click's option for an option of a kind of data."""
    info, default = field.metadata, field.default
    if info["type"] == "flag":
        opposite = f"/{as_option(f'no_{key}')}" if default else ""
        return click.option(as_option(key) + opposite, is_flag=True, default=default, help=info["help"])
    return click.option(
        as_option(key),
        type=click.Choice(list(info["choices"])) if info["choices"] and info["type"] == "text" else TYPES[info["type"]],
        default=None if info["multiple"] else default,
        multiple=info["multiple"],
        metavar=info["metavar"],
        help=info["help"],
    )


def _planned(command: Any) -> Any:
    """Add the arguments and options of the commands that make a plan."""
    options = [
        click.argument("source", type=click.Path()),
        click.argument("out", type=click.Path(), required=False),
        *(_click_option(key, field) for key, (field, _) in FIELDS.items()),
        click.option("--kind", type=click.Choice(kinds.NAMES), help="Kind of data. Default: found from options and files."),
        click.option("--limit", type=int, help="Prepare only this many inputs: evenly spaced ones; of text, the first ones."),
        click.option("--overwrite", is_flag=True, help="Replace the store at OUT once the new one is whole. OUT cannot be a URL."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


WORKERS = click.option("--workers", type=int, help="Worker processes. Default: one per core.")
REJECT_RATE = click.option(
    "--max-reject-rate", type=float, default=0.01, help="Exit with code 3 if a larger share of the inputs than this is rejected."
)


@cli.command(cls=_Grouped, context_settings=SETTINGS)
@click.version_option(__version__)
@_planned
@WORKERS
@REJECT_RATE
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    help="What runs the workers: this machine, or the Ray cluster that RAY_ADDRESS names.",
)
def prep(max_reject_rate: float, **options: Any) -> None:
    """Make a store from SOURCE, or one per split if SOURCE has train/ and val/. OUT, a folder or a URL, defaults to SOURCE's name +
    ".fds". After an interruption, run the same command again. To divide the work, use fastdata-prep plan, run and finish.

    SOURCE of images: a folder with one folder per class, a flat folder, a table of paths and labels (.csv, .tsv, .jsonl, .parquet),
    archives (WebDataset tars 'shards-{000..099}.tar', Parquet, .arrow, MosaicML Streaming's and LitData's folders), or
    module:function, which returns a Python sequence. SOURCE of text, with --tokenizer or --train-bpe: a folder or file: .parquet,
    .txt, .jsonl; the last two also as .gz or .zst. SOURCE of arrays: .npy, .npz, NIfTI.
    """
    from fastdata.prepare.spawn import spares

    here = options["engine"] == "local" and os.path.lexists(options["source"])
    try:
        with spares(options["workers"]) if here else nullcontext():  # they start while this process imports and plans
            from fastdata.prepare.tasks import prep

            signal.signal(signal.SIGTERM, _interrupt)
            summary = prep(**_given(options), progress=True)
    except KeyboardInterrupt:
        arguments = sys.argv[2:] if click.get_current_context().info_name == "fastdata prep" else sys.argv[1:]
        command = shlex.join(["fastdata-prep", *arguments])
        click.echo(f"\ninterrupted; finished work is kept. To continue: {command}", err=True)
        sys.exit(130)
    _report([*summary.splits.values()] or [summary], max_reject_rate)


def _report(stores: Sequence[Summary], max_reject_rate: float) -> None:
    """Print summaries of stores. Exit with code 3 if too many inputs of a store were rejected."""
    for store in stores:
        click.echo("\n".join(store.lines()))
    if bad := [f"{store.out}/rejects.jsonl" for store in stores if store.reject_rate > max_reject_rate]:
        where = " and ".join(bad)
        click.echo(
            f"more than {max_reject_rate:.2%} of the inputs were rejected: see {where}, or raise --max-reject-rate", err=True
        )
        sys.exit(3)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value == () else value for name, value in options.items()}  # (): a repeatable option that is absent


def _interrupt(number: int, frame: object) -> None:
    """Treat SIGTERM as Ctrl-C. Ignore further ones: `timeout` sends two."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


@click.command("plan", cls=_Grouped, context_settings=SETTINGS)
@_planned
def _plan(**options: Any) -> None:
    """Write a plan for SOURCE into OUT. Next: fastdata-prep run on machines that see OUT, then fastdata-prep finish."""
    from fastdata.prepare.tasks import prep_plan

    click.echo("\n".join(prep_plan(**_given(options)).lines()))


@click.command("run", context_settings=SETTINGS)
@click.argument("out", type=click.Path())
@click.option("--task", type=int, metavar="I", help="Number of this task, from 0. Default: make all shards.")
@click.option("--of", type=int, metavar="N", help="Number of tasks.")
@WORKERS
def _run(out: str, **options: Any) -> None:
    """Make the unfinished shards of task I, one of N tasks of the plan in OUT. A task may run twice, or be killed and
    run again.
    """
    from fastdata.prepare.tasks import prep_run

    signal.signal(signal.SIGTERM, _interrupt)
    task, count = (options["task"] or 0, options["of"] or 1)
    click.echo(f"{out}: task {task} of {count}: {prep_run(out, **options)}")


@click.command("finish", context_settings=SETTINGS)
@click.argument("out", type=click.Path())
@REJECT_RATE
def _finish(out: str, max_reject_rate: float) -> None:
    """Turn the shards that tasks have made in OUT into a store."""
    from fastdata.prepare.tasks import prep_finish

    _report([prep_finish(out)], max_reject_rate)


PARTS = {"plan": _plan, "run": _run, "finish": _finish}  # of preparing in tasks: the first word after `fastdata-prep`


# Stores


@contextmanager
def _located(store: str, storage: dict[str, Any] | None) -> Iterator[Any]:
    """Yield the location of a store. A store at a URL is read through a cache that is removed afterwards."""
    from fastdata.remote.reader import locate

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        yield locate(store, cache if is_url(store) and not store.startswith("file:") else None, storage=storage)


@cli.command()
@STORE_OR_URL
@click.option("--json", "as_json", is_flag=True, help="Print all facts as one JSON object.")
@click.option("--sheet", type=click.Path(dir_okay=False), help="Draw samples with masks, names and labels into this PNG.")
@STORAGE
def info(store: str, as_json: bool, sheet: str | None, storage: dict[str, Any] | None) -> None:
    """Describe STORE, a folder or a URL: samples, samples per class, sizes, the memory that a RAMDataset takes, rejects, and how it
    was made."""
    from fastdata.report.drawing import draw_sheet
    from fastdata.store.info import info_lines, store_facts
    from fastdata.store.store import Store

    with _located(store, storage) as place:
        opened = Store(place, kind=None)
        for line in [json.dumps(store_facts(opened), indent=1)] if as_json else info_lines(opened):
            click.echo(line)
        if sheet is not None:
            click.echo(f"{number_of(draw_sheet(place, sheet), opened.kind.item)} drawn in {sheet}", err=as_json)


@cli.command()
@STORE
@click.option("--out", type=click.Path(dir_okay=False), help="The page. Default: NAME-report.html in the working folder.")
def report(store: str, out: str | None) -> None:
    """Write an HTML page about STORE: samples, classes, sizes, rejects, and how it was made."""
    from fastdata.report.drawing import store_page
    from fastdata.store.files import write_atomic

    data = store_page(store).encode()
    target = Path(out or f"{Path(store).absolute().name.removesuffix('.fds')}-report.html")
    write_atomic(target, data, durable=False)
    click.echo(f"{target}: {human_bytes(len(data))}, complete in itself; open it in a browser")


@cli.command()
@STORE_OR_URL
@STORAGE
def verify(store: str, storage: dict[str, Any] | None) -> None:
    """Check STORE, a folder or a URL, against its checksums. Print a line for each problem; exit with code 1 if there are any."""
    from tqdm import tqdm

    from fastdata.store.store import verify

    with tqdm(unit="B", unit_scale=True, disable=None) as bar, _located(store, storage) as place:
        problems = 0
        for problem in verify(place, tick=bar.update):
            problems += 1
            bar.write(problem, file=sys.stdout)
    if problems:
        click.echo(f"{store}: {number_of(problems, 'problem')}", err=True)
        sys.exit(1)
    click.echo(f"{store}: every byte is as written")


@cli.command()
@click.argument("stores", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False), metavar="STORE...")
@click.argument("out", type=click.Path())
def merge(stores: tuple[str, ...], out: str) -> None:
    """Make one store, OUT, of several STOREs that were prepared with the same options. Their shards are hard-linked if the
    file system can do that, and copied otherwise."""
    from fastdata.prepare.merge import merge
    from fastdata.store.store import Store

    made = merge(stores, out)
    click.echo(f"{out}: {number_of(len(Store(made, kind=None)), 'sample')} of {len(stores)} stores")


@cli.command()
@STORE
@click.argument("url")
@STORAGE
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
    "--to", type=click.Choice([to for kind in KINDS for to in kind.exports]), help=f"Format. {FORMATS}. Default: the kind's first."
)
@click.option("--size", type=int, help="Stored size. Default: the largest.")
@click.option(
    "--shard-size",
    metavar="SIZE",
    callback=lambda ctx, param, value: value and parse_bytes(value, "--shard-size"),
    help="Largest size of a tar, such as 500MB. Default: 1GB.",
)
@click.option(
    "--val-fraction",
    type=click.FloatRange(0, 1, max_open=True),
    help="With --to nanogpt: share of tokens, from the end, for val.bin; 0: no val.bin. Default: 0.1.",
)
@STORAGE
def export(store: str, out: str, to: str | None, storage: dict[str, Any] | None, **options: Any) -> None:
    """Write the samples of STORE, a folder or a URL, to DIR as ordinary files: images in class folders or WebDataset tars, tokens
    as .bin, arrays as .npy."""
    from tqdm import tqdm

    from fastdata.store.export import export

    with tqdm(unit="img", disable=None) as bar, _located(store, storage) as place:
        count = export(place, out, to=to, tick=bar.update, **options)
    click.echo(f"{number_of(count, 'sample' if to == 'webdataset' else 'file')} in {out}")


# Measuring

CROP = click.option("--crop", type=click.IntRange(1), help="Side of the random crops. Default: 224, or less for smaller images.")
BATCH_SIZE = click.option("--batch-size", type=click.IntRange(1), help="Images per batch. Default: 64.")


@cli.command()
@STORE
@click.option("--size", type=int, help="Stored size. Default: the largest.")
@CROP
@BATCH_SIZE
@click.option("--workers", type=click.IntRange(0), multiple=True, help="Worker counts to try. Default: 0, powers of 2, all cores.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=3.0, show_default=True, help="Seconds per measurement.")
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Rounds; medians are reported.")
def bench(store: str, **options: Any) -> None:
    """Measure images/s of the Loader on STORE, next to torch's DataLoader and this machine's decode limit."""
    from fastdata.bench.loaders import run_bench

    click.echo("\n".join(run_bench(store, **options)))


@cli.command()
@click.argument("path", required=False, type=click.Path())
@click.option("--loader", metavar="MODULE:FUNCTION", help="Function that returns your DataLoader or Loader.")
@click.option("--model", metavar="MODULE:FUNCTION", help="Function that returns a training step, which is a function of a batch.")
@click.option("--size", type=click.IntRange(1), help="Stored size to read, or size to prepare a folder with.")
@CROP
@BATCH_SIZE
@click.option("--workers", type=click.IntRange(0), help="Worker processes that you use. Default: one per core.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=15.0, help="About how many seconds to measure.")
@click.option("--json", "as_json", is_flag=True, help="Print all numbers as one JSON object.")
def doctor(path: str | None, as_json: bool, **options: Any) -> None:
    """Find out what limits your training: storage, CPU, or the model and the copy to its GPU.

    PATH is a store, or a SOURCE of images, such as a folder with a folder per class. A SOURCE is read as ImageFolder in torch's
    DataLoader would read it; then 300 of its images are prepared, and the Loader reads these. Give --loader for a loader of your
    own in place of ImageFolder, and --model for your model.
    """
    from fastdata.bench.doctor import examine

    found = examine(path, **options)
    click.echo(found.json() if as_json else str(found))


def run(command: click.Command, name: str) -> None:
    """Run a command under this name; turn errors into one line and an exit code."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["prep"] and command is cli:
        command, name, arguments = prep, f"{name} prep", arguments[1:]
    if command is prep and (part := PARTS.get("".join(arguments[:1]))):
        command, name, arguments = part, f"{name} {arguments[0]}", arguments[1:]
    try:
        for stream in (sys.stdout, sys.stderr):  # file names may not be UTF-8
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="surrogateescape")
        command(arguments, prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except (FastDataError, OSError, ValueError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2 if isinstance(error, PrepError | ValueError) else 1)
