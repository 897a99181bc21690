"""The report of runs of a Trainer, from their logs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from fastdata.errors import StoreError
from fastdata.monitor.history import NAME, SMOOTHED, History, points_of, smoothed
from fastdata.report.charts import Line, line_chart, many, number, share
from fastdata.report.html import Html, join, tag
from fastdata.report.page import Section, listing, page

__all__ = ["is_run", "run_report"]

WAITING = 0.1  # a share of the time waiting for data that is worth a look
SKIPPED = 0.01  # a share of skipped updates that is
WORSE = 1.05  # a last evaluation loss, in units of the best, that is
DIGITS = 5


class _Run(NamedTuple):
    name: str
    history: History
    color: int


def is_run(path: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds the log of a run."""
    return (Path(path) / NAME).is_file()


def run_report(paths: Sequence[str | os.PathLike[str]]) -> tuple[str, dict[str, Any]]:
    """Return the page of some runs, side by side, and its numbers as JSON values.

    Raises:
        StoreError: a log has no records.
    """
    runs = [_Run(name, History.read(Path(path) / NAME), k) for k, (path, name) in enumerate(zip(paths, _names(paths), strict=True))]
    for path, run in zip(paths, runs, strict=True):
        if not run.history.updates:
            raise StoreError(f"{Path(path) / NAME} has no record of a run yet: train for longer, or give another folder")
    sections = [_summary(runs), _losses(runs), *_metrics(runs), _rates(runs), _speed(runs)]
    sections = [section for section in sections if section.body]
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    said = ", ".join(map(str, paths))
    numbers = _tiles(runs[0]) if len(runs) == 1 else [(str(len(runs)), "runs"), *_best(runs)]
    values = {section.key: {**section.facts, "findings": list(section.findings)} for section in sections}
    return page(title, said, numbers, sections), {"runs": [os.fspath(path) for path in paths], "sections": values}


def _names(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the shortest ends of the paths that differ."""
    parts = [Path(os.path.abspath(path)).parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-length:]) for one in parts]
        if len(set(names)) == len(names):
            break
    return names


def _facts(run: _Run) -> dict[str, Any]:
    history = run.history
    losses, evaluated = points_of(history.train, "loss"), points_of(history.evaluations, "loss")
    rates, waits = points_of(history.train, "samples_per_s"), points_of(history.train, "wait")
    best = min(evaluated, key=lambda point: point[1], default=None)
    times = [record["time"] for record in (*history.train, *history.evaluations, *history.epochs) if "time" in record]
    return {
        "updates": history.updates,
        "epochs": history.epochs[-1]["epoch"] if history.epochs else 0,
        "loss": losses[-1][1] if losses else None,
        "evaluation": evaluated[-1][1] if evaluated else None,
        "best": best and best[1],
        "best_at": best and best[0],
        "samples_per_s": median(value for _, value in rates) if rates else None,
        "wait": sum(value for _, value in waits) / len(waits) if waits else None,
        "skipped": sum(int(record.get("skipped") or 0) for record in history.train),
        "resumed": sum("resumed_at" in record for record in history.epochs),
        "hours": (max(times) - min(times)) / 3600 if times else None,
        "damaged": history.damaged,
        "last": {name: points[-1][1] for name in history.metrics if (points := points_of(history.evaluations, name))},
    }


def _tiles(run: _Run) -> list[tuple[str, str]]:
    facts = _facts(run)
    found = [(number(facts["updates"]), "updates"), (number(facts["epochs"]), "epochs")]
    shown = [("loss", "training loss"), ("best", "best evaluation loss"), ("samples_per_s", "samples/s, median")]
    found += [(number(float(f"{facts[key]:.4g}")), what) for key, what in shown if facts[key] is not None]
    return found + ([(share(facts["wait"], 1), "waiting for data")] if facts["wait"] is not None else [])


def _best(runs: Sequence[_Run]) -> list[tuple[str, str]]:
    found = [(facts["best"], run.name) for run in runs if (facts := _facts(run))["best"] is not None]
    return [(f"{value:.4g}", f"best evaluation loss, {name}") for value, name in [min(found)]] if found else []


def _summary(runs: Sequence[_Run]) -> Section:
    every = {run.name: _facts(run) for run in runs}
    rows: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("updates", lambda facts: number(facts["updates"])),
        ("epochs", lambda facts: number(facts["epochs"])),
        ("last training loss", lambda facts: _shown(facts["loss"])),
        ("last evaluation loss", lambda facts: _shown(facts["evaluation"])),
        (
            "best evaluation loss",
            lambda facts: "–" if facts["best"] is None else f"{_shown(facts['best'])} at {number(facts['best_at'])}",
        ),
        *((name, lambda facts, name=name: _shown(facts["last"].get(name))) for name in _metric_names(runs)),
        ("samples/s, median", lambda facts: _shown(facts["samples_per_s"])),
        ("waiting for data", lambda facts: "–" if facts["wait"] is None else share(facts["wait"], 1)),
        ("updates skipped", lambda facts: number(facts["skipped"])),
        ("times resumed", lambda facts: number(facts["resumed"])),
        ("first to last record", lambda facts: "–" if facts["hours"] is None else _duration(facts["hours"])),
    ]
    cells = [(what, *(show(facts) for facts in every.values())) for what, show in rows]
    heads = ["", *(join(tag("i", class_=f"c{run.color % 8} swatch"), run.name) for run in runs)]
    table = listing(heads, cells, numbers=range(1, len(runs) + 1))
    findings = [
        f"{name}: {text}" if len(runs) > 1 else text[0].upper() + text[1:]
        for name, facts in every.items()
        for text in _findings(facts)
    ]
    return Section("summary", "Summary", table, {"runs": every}, tuple(findings))


def _findings(facts: dict[str, Any]) -> list[str]:
    found = []
    if facts["wait"] is not None and facts["wait"] > WAITING:
        times = 1 / max(1 - facts["wait"], 0.01)
        found.append(
            f"it waits for data for {share(facts['wait'], 1)} of the time; a perfect loader would be {times:.2f} x as fast."
        )
    if facts["skipped"] > SKIPPED * facts["updates"]:
        skipped = f"{number(facts['skipped'])} of {number(facts['updates'])} updates"
        found.append(f"{skipped} were skipped, because they were not finite.")
    if facts["best"] is not None and facts["best"] > 0 and facts["evaluation"] > WORSE * facts["best"]:
        best = f"best at update {number(facts['best_at'])} ({_shown(facts['best'])})"
        found.append(f"the evaluation loss was {best}, and is {_shown(facts['evaluation'])} at the end.")
    if facts["damaged"]:
        found.append(f"{many(facts['damaged'], 'line')} of the log could not be read.")
    return found


def _shown(value: float | None) -> str:
    return "–" if value is None else number(float(f"{value:.{DIGITS}g}"))


def _duration(hours: float) -> str:
    seconds = round(hours * 3600)
    if seconds < 60:
        return f"{seconds} s"
    return f"{seconds // 3600} h {seconds // 60 % 60} min" if seconds >= 3600 else f"{seconds // 60} min {seconds % 60} s"


def _of(run: _Run, runs: Sequence[_Run], what: str) -> str:
    """Return the name of a line: what it is, of which run if there are several."""
    return what if len(runs) == 1 else f"{run.name}, {what}" if what else run.name


def _curves(run: _Run, runs: Sequence[_Run], name: str) -> list[Line]:
    """Return the lines of a number in training, with a moving average if it is long, and in evaluations."""
    train, evaluated = (points_of(records, name) for records in (run.history.train, run.history.evaluations))
    first = 2 * run.color if len(runs) == 1 else run.color
    lines = []
    if name == "loss" and len(train) >= SMOOTHED:
        lines += [
            Line(run.name, train, first, faint=True),
            Line(_of(run, runs, "training, moving average"), smoothed(train), first),
        ]
    else:
        lines.append(Line(_of(run, runs, "training"), train, first))
    averaged = any(record.get("ema") for record in run.history.evaluations)
    second = first + 1 if len(runs) == 1 else first
    what = "evaluation of averaged weights" if averaged else "evaluation"
    return [*lines, Line(_of(run, runs, what), evaluated, second, dashed=len(runs) > 1, marks=True)]


def _chart(runs: Sequence[_Run], lines: Sequence[Line], what: str, **options: Any) -> Html:
    ends = [record["update"] for record in runs[0].history.epochs] if len(runs) == 1 else []
    return line_chart(lines, what, ends=ends if len(ends) <= 60 else (), **options)


def _losses(runs: Sequence[_Run]) -> Section:
    lines = [line for run in runs for line in _curves(run, runs, "loss")]
    return Section("loss", "Loss", _chart(runs, lines, "Loss over updates", log=True))


def _metric_names(runs: Sequence[_Run]) -> list[str]:
    return sorted({name for run in runs for name in run.history.metrics})


def _metrics(runs: Sequence[_Run]) -> list[Section]:
    names = _metric_names(runs)
    charts = [_chart(runs, [line for run in runs for line in _curves(run, runs, name)], name) for name in names]
    return [Section("metrics", "Metrics", tag("div", charts, class_="columns"), {"names": names})] if names else []


def _rates(runs: Sequence[_Run]) -> Section:
    lines = [Line(_of(run, runs, ""), points_of(run.history.train, "lr"), run.color) for run in runs]
    return Section("rates", "Learning rate", _chart(runs, lines, "Learning rate of the first group", zero=True))


def _speed(runs: Sequence[_Run]) -> Section:
    lines = []
    for run in runs:
        train = run.history.train
        lines.append(Line("as it was" if len(runs) == 1 else run.name, points_of(train, "samples_per_s"), run.color))
        if len(runs) == 1:
            lines.append(
                Line("without waiting for data", points_of(train, "samples_per_s_without_waiting"), run.color + 1, dashed=True)
            )
    speed = _chart(runs, lines, "Samples per second", zero=True)
    waits = [Line(_of(run, runs, ""), points_of(run.history.train, "wait", 100), run.color) for run in runs]
    wait = _chart(runs, waits, "Waiting for data, % of the time", zero=True, top=100.0)
    return Section("speed", "Throughput", tag("div", speed, wait, class_="columns") if speed or wait else Html())
