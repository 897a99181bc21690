"""The command `fastdata-prep`, which is also `fastdata prep`, and its parts: plan, run and finish."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import click

from fastdata._version import __version__
from fastdata.cli_options import HELP, PLANNED, SETTINGS, WORKERS, HelpInGroups, options_of_kinds, with_options

if TYPE_CHECKING:
    from fastdata.prepare.summary import Summary

__all__ = ["prep"]

SOURCE = click.argument("source", type=click.Path())
OUT = click.argument("out", type=click.Path(), required=False)
REJECT_RATE = click.option(
    "--max-reject-rate", type=float, default=0.01, help="Exit with code 3 if a larger share of the inputs is rejected."
)


class _Prep(HelpInGroups):
    """A command whose first argument may be the name of one of its parts."""

    parts: ClassVar[dict[str, click.Command]] = {}

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] in self.parts:
            return self.parts[args[0]].make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


@click.command("prep", cls=_Prep, context_settings=SETTINGS)
@click.version_option(__version__)
@SOURCE
@OUT
@options_of_kinds
@with_options(PLANNED, (WORKERS,))
@click.option("--dry-run", is_flag=True, help="Estimate size and time without writing anything.")
@REJECT_RATE
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    help="What runs the workers: this machine, or the Ray cluster that RAY_ADDRESS names.",
)
@with_options(HELP)
def prep(dry_run: bool, max_reject_rate: float, **options: Any) -> None:
    """Make a store from SOURCE (of train/ and val/: two). OUT, a folder or a URL, defaults to SOURCE's name + ".fds" here.
    To continue after an interruption, run it again. In tasks: plan, run, finish.
    """
    from fastdata.prepare.spawn import spares

    here = not dry_run and options["engine"] == "local" and os.path.lexists(options["source"])
    with spares(options["workers"]) if here else nullcontext():
        _prepare(dry_run, max_reject_rate, _given(options))


def _prepare(dry_run: bool, max_reject_rate: float, options: dict[str, Any]) -> None:
    """Run the command, while workers start."""
    from fastdata.prepare.estimate import estimate
    from fastdata.prepare.tasks import prep

    if dry_run:
        for run_only in ("overwrite", "engine"):
            options.pop(run_only, None)
        found = estimate(**options)
        click.echo("\n".join(found.lines()))
        if sum(found.rejected.values()) > max_reject_rate * found.probes:
            _end(max_reject_rate, "tried inputs are rejected")
        sys.exit(0 if found.fits else 1)
    try:
        signal.signal(signal.SIGTERM, _interrupt)
        summary = prep(**options, progress=True)
    except KeyboardInterrupt:
        arguments = sys.argv[2:] if click.get_current_context().info_name == "prep" else sys.argv[1:]
        command = shlex.join(["fastdata-prep", *arguments])
        click.echo(f"\ninterrupted; finished work is kept. To continue: {command}", err=True)
        sys.exit(130)
    stores = list(summary.splits.values()) or [summary]
    for one in stores:
        click.echo("\n".join(one.lines()))
    _check_rejects(stores, max_reject_rate)


def _check_rejects(stores: Iterable[Summary], max_reject_rate: float) -> None:
    """End with code 3 if too many inputs of a store were rejected."""
    if bad := [f"{store.out}/rejects.jsonl" for store in stores if store.reject_rate > max_reject_rate]:
        _end(max_reject_rate, f"inputs were rejected: see {' and '.join(bad)}")


def _end(max_reject_rate: float, what: str) -> None:
    click.echo(f"more than {max_reject_rate:.2%} of the {what}; --max-reject-rate allows more", err=True)
    sys.exit(3)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value == () else value for name, value in options.items()}  # (): a repeatable option that is absent


def _interrupt(number: int, frame: object) -> None:
    """Treat SIGTERM as Ctrl-C. Ignore further ones: `timeout` sends two."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


@click.command("plan", cls=HelpInGroups, context_settings=SETTINGS)
@SOURCE
@OUT
@options_of_kinds
@with_options(PLANNED, HELP)
def _plan(**options: Any) -> None:
    """Plan how to prepare SOURCE, and write the plan into OUT, for tasks on machines that share its disk: run, then finish."""
    from fastdata.prepare.tasks import prep_plan

    click.echo("\n".join(prep_plan(**_given(options)).lines()))


@click.command("run", context_settings=SETTINGS)
@click.argument("out", type=click.Path())
@click.option("--task", type=int, metavar="I", help="Number of this task, from 0. Default: all shards.")
@click.option("--of", type=int, metavar="N", help="Number of tasks.")
@with_options((WORKERS,))
def _run(out: str, **options: Any) -> None:
    """Make the shards of task I of the N tasks of the plan in OUT, if they are not finished. A task may run twice, or be killed and
    run again.
    """
    from fastdata.prepare.tasks import prep_run

    signal.signal(signal.SIGTERM, _interrupt)
    click.echo(prep_run(out, **options))


@click.command("finish", context_settings=SETTINGS)
@click.argument("out", type=click.Path())
@REJECT_RATE
def _finish(out: str, max_reject_rate: float) -> None:
    """Turn the shards that tasks have made in OUT into a store."""
    from fastdata.prepare.tasks import prep_finish

    summary = prep_finish(out)
    click.echo("\n".join(summary.lines(run=False)))
    _check_rejects([summary], max_reject_rate)


_Prep.parts = {"plan": _plan, "run": _run, "finish": _finish}
