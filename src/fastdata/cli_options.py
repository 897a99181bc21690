"""The options of `fastdata-prep` as click has them, made from the options of each kind of data, and help in groups."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from fastdata import kinds
from fastdata.options import OptionInfo, as_option, options_of
from fastdata.remote.url import parse_storage

__all__ = [
    "HELP",
    "KINDS",
    "PLANNED",
    "SETTINGS",
    "STORAGE",
    "WORKERS",
    "File",
    "HelpInGroups",
    "options_of_kinds",
    "with_options",
]

KINDS = [kinds.find(name) for name in kinds.NAMES]
SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}
RUN = "The run"
COMMON = ("limit", "overwrite", "dry_run", "help_all", "help_for")  # options of the run that short help shows
TITLES = ("Options", "Images", "Labels", "Masks", "Text", "Arrays", RUN)
HELP_FOR = "fastdata.help-for"
FIELDS: dict[str, Any] = {}  # option of a kind of data -> its field
GROUPS: dict[str, dict[str, str]] = {}  # -> its kinds, and its group in the help of each
for _kind in KINDS:
    for _key, _field in options_of(_kind.options).items():
        FIELDS.setdefault(_key, _field)
        GROUPS.setdefault(_key, {})[_kind.name] = _field.metadata["said"].group or _kind.options.__doc__ or _kind.name
SOURCES = (
    "SOURCE is a folder with one folder per class, a flat folder, a table of paths and labels (.csv, .tsv, .jsonl, .parquet), or "
    "archives: WebDataset tars ('shards-{000..099}.tar'), Parquet, .arrow, MosaicML Streaming's and LitData's folders; or "
    "module:function, which returns a Python sequence. "
    "Or, with --tokenizer or --train-bpe, a folder or file of text: .txt, .jsonl, .parquet, also .gz or .zst. "
    "Or arrays: .npy, .npz, NIfTI."
)


class File(click.Path):
    """The path of a file with this ending."""

    def __init__(self, ending: str) -> None:
        super().__init__(dir_okay=False)
        self.ending = ending

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).lower().endswith(self.ending):
            self.fail(f"{str(value)!r} does not end in {self.ending}", param, ctx)
        return super().convert(value, param, ctx)


class HelpInGroups(click.Command):
    """A command whose help shows a few options, those of a kind, or all options in groups."""

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
            owners = GROUPS.get(param.name or "", {})
            common = param.name in COMMON or (owners and FIELDS[param.name or ""].metadata["said"].common)
            if record is None or (not common if wanted is None else wanted != "all" and owners and wanted not in owners):
                continue
            group = owners.get(wanted or "", next(iter(owners.values()), RUN))
            if wanted is None:
                group = "Options"
                record = record[0], re.split(r"(?<=[^.])\.(?: |$)|;|  \[", record[1])[0] + "."  # the first sentence
            groups.setdefault(group, []).append(record)
        for title in sorted(groups, key=TITLES.index):
            with formatter.section(title):
                formatter.write_dl(groups[title])


def _sides(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) for part in parts):
        raise click.BadParameter(f"{text!r} is not a box: give a positive number for each axis, such as 64,64,64")
    return tuple(map(int, parts))


class _Place(click.Path):
    """A path that must exist, or a URL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if "://" in str(value) else super().convert(value, param, ctx)


TYPES: dict[str, Any] = {
    "text": str,
    "int": int,
    "path": click.Path(),
    "file": _Place(exists=True, dir_okay=False),
    "folder": _Place(exists=True, file_okay=False),
    "sides": _sides,
}
METAVARS = {"sides": "N,N,N"}


def options_of_kinds(command: Any) -> Any:
    """Add the options of every kind of data, from their dataclasses."""
    for key in sorted(FIELDS, key=lambda key: TITLES.index(next(iter(GROUPS[key].values()))))[::-1]:
        command = _click_option(key, FIELDS[key].metadata["said"], FIELDS[key].default)(command)
    return command


def _click_option(key: str, info: OptionInfo, default: Any) -> Callable[[Any], Any]:
    if info.type == "flag":
        opposite = f"/{as_option(f'no_{key}')}" if default else ""
        return click.option(as_option(key) + opposite, is_flag=True, default=default, help=info.help)
    choices = info.choices and info.type == "text"
    return click.option(
        as_option(key),
        type=click.Choice(list(info.choices)) if choices else TYPES[info.type],
        default=None if info.several else default,
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


PLANNED = (  # options of whatever makes a plan
    click.option("--kind", type=click.Choice([kind.name for kind in KINDS]), help="Kind of data. Default: found from the files."),
    click.option(
        "--limit", type=int, help="Prepare only so many inputs. Images and arrays are evenly spaced; documents are the first."
    ),
    click.option("--overwrite", is_flag=True, help="Replace a store once the new one is whole. Not at a URL."),
)
WORKERS = click.option("--workers", type=int, help="Worker processes. Default: one per core.")
STORAGE = click.option(
    "--storage",
    multiple=True,
    metavar="KEY=VALUE",
    callback=lambda ctx, param, value: parse_storage(value) or None,
    help="If a URL is given: an option of its client, such as endpoint, region or anonymous=true; may repeat. Default: as the "
    "environment says, which is also the place for secrets.",
)
HELP = (
    click.option("--help-all", is_flag=True, expose_value=False, is_eager=True, callback=_show_help, help="Show all options."),
    click.option(
        "--help-for",
        type=click.Choice([kind.name for kind in KINDS]),
        expose_value=False,
        is_eager=True,
        callback=_show_help,
        help="Show the options of one kind of data.",
    ),
)


def with_options(*groups: tuple[Callable[[Any], Any], ...]) -> Callable[[Any], Any]:
    """Add groups of options to a command, in this order."""

    def add(command: Any) -> Any:
        for option in reversed([option for group in groups for option in group]):
            command = option(command)
        return command

    return add
