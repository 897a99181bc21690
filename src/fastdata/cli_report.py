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
@click.argument("store", type=click.Path(exists=True, file_okay=False))
@click.option("--out", type=_Page(dir_okay=False), help="The page to write. Default: NAME-report.html in the working folder.")
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False),
    help="The folder that STORE was prepared from, for pictures of rejects. Default: STORE without its ending.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the numbers of the report as one JSON object.")
def report(store: str, out: str | None, source: str | None, as_json: bool) -> None:
    """Write an HTML page about a STORE: samples, classes, sizes, columns, rejects, and how it was made."""
    from fastdata.report.store_report import store_report
    from fastdata.store.files import write_atomic

    page, found = store_report(store, source)
    target = Path(out or f"{Path(os.path.abspath(store)).name.removesuffix('.fds')}-report.html")
    data = page.encode()
    write_atomic(target, data, durable=False)
    said = f"{target}: {human_bytes(len(data))}, complete in itself; open it in a browser"
    click.echo(json.dumps({"out": str(target), **found}, indent=1) if as_json else said)
