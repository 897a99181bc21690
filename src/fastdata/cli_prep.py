"""The command `fastdata-prep`, which is also `fastdata prep`, and its parts: plan, run and finish."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from fastdata._version import __version__
from fastdata.cli_options import HELP, PLANNED, SETTINGS, WORKERS, HelpInGroups, options_of_kinds, run_option, with_options
from fastdata.errors import PrepError

if TYPE_CHECKING:
    from fastdata.prepare.summary import Summary

__all__ = ["prep"]

SOURCE = click.argument("source", type=click.Path())
OUT = click.argument("out", type=click.Path(), required=False)
REJECT_RATE = run_option(
    "--max-reject-rate", type=float, default=0.01, help="Exit with code 3 if a larger share of the inputs is rejected."
)


class _Prep(HelpInGroups):
    """A command whose first argument may be the name of one of its parts."""

    parts: ClassVar[dict[str, click.Command]] = {}

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if not args or args[0] not in self.parts:
            return super().make_context(info_name, args, parent, **extra)
        name = args[0]
        try:
            return self.parts[name].make_context(f"{info_name} {name}", args[1:], parent, **extra)
        except click.UsageError as error:
            raise click.UsageError(f"{error.format_message()}{_folder_of(name)}", error.ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


class _Part(click.Command):
    """A part, whose errors say how to prepare a SOURCE of the same name."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (PrepError, ValueError) as error:
            raise type(error)(f"{error}{_folder_of(self.name or '')}") from error


class _PlanPart(_Part, HelpInGroups):
    """The part that has the options of every kind of data."""


def _folder_of(part: str) -> str:
    """Return what to type for a SOURCE that has the name of a part; "" if there is none."""
    return f"\n{part} is a command; to prepare the folder of this name, type ./{part}" if Path(part).exists() else ""


@click.command("prep", cls=_Prep, context_settings=SETTINGS)
@click.version_option(__version__)
@SOURCE
@OUT
@options_of_kinds
@with_options(PLANNED, (WORKERS,))
@run_option("--dry-run", is_flag=True, help="Estimate size and time without writing anything.", common=True)
@REJECT_RATE
@run_option(
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
    from fastdata.prepare import report
    from fastdata.prepare.estimate import estimate
    from fastdata.prepare.job import prep

    if dry_run:
        for run_only in ("overwrite", "engine"):
            options.pop(run_only, None)
        found = estimate(**options)
        for line in report.estimate_lines(found):
            click.echo(line)
        if sum(found.rejected.values()) > max_reject_rate * found.probes:
            click.echo(f"more than {max_reject_rate:.2%} of the tried inputs are rejected; --max-reject-rate allows more", err=True)
            sys.exit(3)
        sys.exit(0 if found.fits else 1)
    try:
        with _terminable():
            summary = prep(**options, progress="auto")
    except KeyboardInterrupt as error:
        command = shlex.join(["fastdata-prep", *_arguments()])
        click.echo(f"\ninterrupted; finished work is kept. To continue: {command}", err=True)
        sys.exit(143 if isinstance(error, _Terminated) else 130)
    stores = list(summary.splits.values()) or [summary]
    for one in stores:
        for line in report.summary_lines(one):
            click.echo(line)
    _check_rejects(stores, max_reject_rate)


def _check_rejects(stores: Iterable[Summary], max_reject_rate: float) -> None:
    """End with code 3 if too many inputs of a store were rejected."""
    if bad := [store for store in stores if store.reject_rate > max_reject_rate]:
        rejects = " and ".join(f"{store.out}/rejects.jsonl" for store in bad)
        click.echo(
            f"more than {max_reject_rate:.2%} of the inputs were rejected: see {rejects}; --max-reject-rate allows more", err=True
        )
        sys.exit(3)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value == () else value for name, value in options.items()}  # (): a repeatable option that is absent


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


def _part(name: str, cls: type[_Part] = _Part) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function a part of the command."""

    def add(function: Callable[..., None]) -> click.Command:
        _Prep.parts[name] = click.command(name, cls=cls, context_settings=SETTINGS)(function)
        return _Prep.parts[name]

    return add


@_part("plan", _PlanPart)
@SOURCE
@OUT
@options_of_kinds
@with_options(PLANNED, HELP)
def _plan(**options: Any) -> None:
    """Plan how to prepare SOURCE, and write the plan into OUT, for tasks on machines that share its disk, or on
    any machines if it is a URL: run, then finish."""
    from fastdata.prepare import report
    from fastdata.prepare.tasks import prep_plan

    for line in report.plan_lines(prep_plan(**_given(options))):
        click.echo(line)


@_part("run")
@click.argument("out", type=click.Path())
@click.option("--task", type=int, metavar="I", help="Number of this task, from 0. Default: all shards.")
@click.option("--of", type=int, metavar="N", help="Number of tasks.")
@with_options((WORKERS,))
def _run(out: str, **options: Any) -> None:
    """Make the shards of task I of the N tasks of the plan in OUT, if they are not finished. A task may run twice, or be killed and
    run again.
    """
    from fastdata.prepare import report
    from fastdata.prepare.tasks import prep_run

    with _terminable():
        click.echo(report.task_line(prep_run(out, **options)))


@_part("finish")
@click.argument("out", type=click.Path())
@REJECT_RATE
def _finish(out: str, max_reject_rate: float, **options: Any) -> None:
    """Turn the shards that tasks have made in OUT into a store."""
    from fastdata.prepare import report
    from fastdata.prepare.tasks import prep_finish

    summary = prep_finish(out, **options)
    for line in report.store_lines(summary):
        click.echo(line)
    _check_rejects([summary], max_reject_rate)
