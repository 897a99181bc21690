"""The report of a diagnosis, as text."""

from __future__ import annotations

from collections.abc import Iterator

from fastdata.bench.harness import table
from fastdata.diagnosis.findings import Findings
from fastdata.diagnosis.storage import READERS
from fastdata.diagnosis.variants import duration
from fastdata.words import human_bytes, number_of

__all__ = ["PARTS", "SEEN", "report_lines", "verdict_line"]

PARTS = {  # the parts of a sample, in order: its name, and the resource that it needs
    "waiting": ("waiting for storage", "storage"),
    "read": ("read", "CPU"),
    "decode": ("decode", "CPU"),
    "resize": ("resize", "CPU"),
    "transform": ("transform, other", "CPU"),
    "collate": ("collate", "CPU"),
    "handover": ("hand over", "CPU"),
    "copy": ("copy to the device", "copy"),
    "step": ("step of the model", "model"),
}
SEEN = 0.0005  # the smallest share that is shown
MEANING = {
    "storage": "the loop waits for the disk, or whatever else samples are read from",
    "CPU": "the loop waits for batches, which cost CPU time to make",
    "copy": "the loop waits for copies to the device",
    "model": "the model is the limit, and batches are there in time",
    "memory": "the run would be killed, because its workers need more memory than there is",
    "nothing": "no single part limits the loop: the times of several are balanced",
}


def verdict_line(found: Findings) -> str:
    """Return the verdict in one sentence."""
    known = found.verdict not in ("memory", "nothing") and found.loop.costs.step
    gain = f" Without this limit it would be {_times(found.gain)} as fast." if known else ""
    return f"{found.verdict}: {MEANING[found.verdict]}.{gain}"


def report_lines(found: Findings) -> Iterator[str]:
    """Yield the lines of a report."""
    workers = f"{number_of(found.workers, 'worker')}, batches of {found.batch_size}"
    samples = "" if found.samples is None else f": {found.samples:,} samples"
    yield f"{found.subject}{samples}; {workers}"
    yield _machine(found)
    yield ""
    yield f"verdict    {verdict_line(found)}"
    yield f"           {', '.join(f'{name} {share:.0%}' for name, share in _sorted_shares(found))} of the time of the loop"
    yield f"           {found.sure}{':' * bool(found.doubts)}"
    yield from (f"             {doubt}" for doubt in found.doubts)
    yield ""
    yield from _parts(found)
    yield ""
    yield from _rates(found)
    yield ""
    yield f"memory     {found.memory.line(found.conditions)}"
    first, *others = _storage(found)
    yield f"storage    {first}"
    yield from (f"           {line}" for line in others)
    if found.variants:
        yield ""
        yield from _variants(found)
    yield ""
    yield from _advice(found)


def _machine(found: Findings) -> str:
    here = found.conditions
    load = f", of which other programs keep {here.others:.1f} busy" if here.others else ", no other load"
    pressure = "" if here.pressure is None else f", pressure {here.pressure:.0%}"
    shm = "" if here.shm is None else f", /dev/shm {human_bytes(here.shm)} free"
    return f"{number_of(here.cores, 'core')}{load}{pressure}; memory {human_bytes(here.memory)} free{shm}"


def _sorted_shares(found: Findings) -> list[tuple[str, float]]:
    shares = {name: share for name, share in found.shares.items() if share > SEEN or name in ("storage", "CPU")}
    return sorted(shares.items(), key=lambda item: -item[1])


def _parts(found: Findings) -> list[str]:
    costs = vars(found.loop.costs)
    whole = max(sum(costs[name] for name in PARTS), 1e-12)
    shown = [(title, resource, costs[name]) for name, (title, resource) in PARTS.items() if costs[name] > SEEN * whole]
    rows = [[title, resource, f"{1e3 * seconds:.3f}", f"{seconds / whole:.0%}"] for title, resource, seconds in shown]
    return table(["part, each by itself", "needs", "ms a sample", "share"], rows)


def _rates(found: Findings) -> Iterator[str]:
    model = found.loop.step
    headers = ["workers", "loader alone, samples/s", "", *(["with the model, samples/s"] if model else [])]
    rows = []
    for workers, rate in found.rates.items():
        how = "measured" if workers in found.loop.measured else "fitted"
        here = "  <- yours" if workers == found.workers else ""
        rows.append([f"{workers}{here}", f"{rate:,.0f}", how, *([f"{1 / found.loop.seconds(workers):,.0f}"] if model else [])])
    yield from table(headers, rows)
    if found.together is not None:
        yield f"together, measured: {found.together:,.0f} samples/s; predicted from the parts: {found.rate:,.0f}"
    if found.needed is not None:
        here = number_of(found.conditions.cores, "core")
        yield f"the model alone takes {1 / model:,.0f} samples/s, which {found.needed:.1f} workers would make; there are {here}"


def _storage(found: Findings) -> Iterator[str]:
    storage = found.storage
    if storage is None:
        yield "not measured: the samples are not in files that can be seen"
        return
    warm = f"{1 / max(storage.warm_s, 1e-9):,.0f}/s from memory"
    cold = "from the disk not measured, since the files cannot be dropped from memory"
    if storage.cold_s is not None:
        many = "" if storage.many_s is None else f" ({1 / storage.many_s:,.0f}/s with {READERS} readers)"
        cold = f"{1 / storage.cold_s:,.0f}/s from the disk{many}"
    yield f"{human_bytes(storage.sample_bytes)} a sample; {warm}, {cold}"
    if storage.data_bytes:
        fits = storage.data_bytes <= found.conditions.memory
        epochs = "fit into free memory: only the first epoch reads the disk" if fits else "do not fit into free memory"
        yield f"all samples, {human_bytes(storage.data_bytes)}, {epochs}"


def _variants(found: Findings) -> Iterator[str]:
    rows = [
        [
            f"{variant.codec}{'' if variant.size is None else f', size {variant.size}'}",
            human_bytes(variant.disk_bytes),
            human_bytes(variant.memory_bytes),
            f"{variant.rate:,.0f}",
            duration(variant.minutes),
        ]
        for variant in found.variants
    ]
    yield from table(["store, predicted", "on disk", "in memory", "Loader, samples/s", "time to prepare"], rows)
    if found.left_out:
        yield f"not tried, since the time was over: {', '.join(found.left_out)}; give more --seconds"
    if found.rejected:
        yield "images that cannot be prepared, of those that were tried: " + ", ".join(
            f"{k} {n}" for k, n in found.rejected.items()
        )


def _advice(found: Findings) -> Iterator[str]:
    if not found.advice:
        yield "advice     none: nothing that was tried or predicted would bring 5 %"
    for number, one in enumerate(found.advice, 1):
        gain = f": {_times(one.gain)} as fast, {one.rate:,.0f} samples/s" if one.gain and one.rate and one.gain > 1 else ""
        yield f"{number}. {one.title}{gain}"
        yield from (f"       {line}" for line in one.paste.splitlines())
        yield f"       # {one.how}"


def _times(gain: float) -> str:
    return "over 100 times" if gain >= 100 else f"{gain:.2f} times" if gain < 10 else f"{gain:.0f} times"
