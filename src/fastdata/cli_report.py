"""The command `fastdata report`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from fastdata.words import human_bytes

__all__ = ["report"]


class _Page(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).lower().endswith((".html", ".htm")):
            self.fail(f"{str(value)!r} does not end in .html: give the name of an HTML file", param, ctx)
        return super().convert(value, param, ctx)


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False), metavar="STORE | RUN_DIR...")
@click.option("--out", type=_Page(dir_okay=False), help="The page to write. Default: NAME-report.html in the working folder.")
@click.option(
    "--sample",
    type=click.IntRange(1),
    default=2000,
    show_default=True,
    help="Largest number of images or arrays to decode and measure, evenly spaced.",
)
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False),
    help="The folder that STORE was prepared from, for pictures of rejects. Default: STORE without its ending.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the numbers of the report as one JSON object.")
def report(paths: tuple[str, ...], out: str | None, sample: int, source: str | None, as_json: bool) -> None:
    """Write an HTML page about a STORE: samples, classes, sizes, quality, duplicates, rejects, and how it was made. Or about one
    or more RUN_DIRs of the Trainer, side by side: losses, metrics, learning rates, throughput and waiting."""
    from fastdata.report.run_report import is_run, run_report
    from fastdata.report.store_report import store_report
    from fastdata.store.files import write_atomic

    runs = [path for path in paths if is_run(path)]
    if not runs and len(paths) > 1:
        raise click.UsageError(f"{', '.join(paths)} are not folders of runs: give one STORE, or RUN_DIRs, which have a log.jsonl")
    if runs and len(runs) < len(paths):
        other = next(path for path in paths if path not in runs)
        raise click.UsageError(f"{other} has no log.jsonl, so it is no RUN_DIR; a STORE has a report of its own")
    if runs and source is not None:
        raise click.UsageError(f"--source {source} belongs to a STORE, but {runs[0]} is a RUN_DIR: leave --source out")
    page, found = run_report(paths) if runs else store_report(paths[0], most=sample, source=source)
    target = Path(out or _default_name(paths))
    data = page.encode()
    write_atomic(target, data, durable=False)
    said = f"{target}: {human_bytes(len(data))}, complete in itself; open it in a browser"
    click.echo(json.dumps({"out": str(target), **found}, indent=1) if as_json else said)


def _default_name(paths: tuple[str, ...]) -> str:
    path = Path(os.path.abspath(paths[0]))
    name = path.stem if path.suffix == ".fds" else path.name
    return f"{name}{'-and-others' if len(paths) > 1 else ''}-report.html"
