"""Run a client's own tests on Loaders: a pytest plugin that makes a Loader wherever a test makes a DataLoader.

The tests are those of a checkout of the client, as they are; docs/integrations.md says what came of them:

    cd CHECKOUT; LOADERS=plain PYTHONPATH=FASTDATA/tests/integrations python -m pytest -p substitute tests

LOADERS is "plain", "accelerate" for AcceleratedLoaders, or "torch" to see which tests pass in this environment at all. What a
Loader does not take, such as an iterable dataset, is left to the DataLoader. At the end there is a line for each test: how many
Loaders it made, and what was left to DataLoaders.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections import Counter
from types import ModuleType
from typing import Any

import accelerate
import pytest
import torch.utils.data
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import fastdata
from fastdata.integrations.accelerate import AcceleratedLoader

KIND = os.environ.get("LOADERS", "plain")
CLIENTS = ("lightning.pytorch", "lightning.fabric", "accelerate", "accelerate.data_loader")
TAKEN = {
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "drop_last",
    "prefetch_factor",
}
WITHOUT_MEANING = {"pin_memory", "persistent_workers", "generator", "in_order", "snapshot_every_n_steps"}
MADE: Counter[str] = Counter()


def left_out(options: dict[str, Any]) -> str:
    """Why a Loader can't be made of a DataLoader's options; "" if it can."""
    if isinstance(options["dataset"], IterableDataset) or not hasattr(options["dataset"], "__getitem__"):
        return "an iterable dataset"
    if options.get("batch_size", 1) is None and options.get("batch_sampler") is None:
        return "batch_size=None"
    unknown = {name for name, value in options.items() if value} - TAKEN - WITHOUT_MEANING
    return ", ".join(sorted(unknown))


class _Loader(fastdata.Loader):
    """Lets tests set `num_workers`, which they do to have no processes."""

    num_workers = property(fastdata.Loader.num_workers.fget, lambda self, _: None)  # type: ignore[attr-defined]


def make(options: dict[str, Any]) -> Any:
    """A Loader with a DataLoader's options: its seed is that of the generator which a DataLoader would draw from."""
    generator = options.get("generator") or torch.default_generator
    chosen = {name: value for name, value in options.items() if name in TAKEN and value is not None}
    if "batch_sampler" not in chosen:
        chosen.setdefault("batch_size", 1)
    chosen.setdefault("num_workers", 0)
    loader = _Loader(chosen.pop("dataset"), seed=generator.initial_seed() % 2**64, **chosen)
    return AcceleratedLoader(loader) if KIND == "accelerate" else loader


def prepare(accelerator: Any, *objects: Any, prepare: Any = accelerate.Accelerator.prepare, **options: Any) -> Any:
    """As Accelerate's own, with the line that docs/integrations.md asks for."""
    for loader in objects:
        if isinstance(loader, AcceleratedLoader):
            accelerator.register_for_checkpointing(loader)
    return prepare(accelerator, *objects, **options)


class Substituted(type):
    """Of a class that looks like DataLoader: its instances are Loaders, those of its subclasses are DataLoaders."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls not in SUBSTITUTES:
            why = "a subclass of DataLoader"
        else:
            options = inspect.signature(cls.__mro__[1].__init__).bind(None, *args, **kwargs).arguments
            options.pop("self")
            why = left_out(options)
        MADE[why or "Loader"] += 1
        if why or KIND == "torch":
            return super().__call__(*args, **kwargs)
        return make(options)

    def __instancecheck__(cls, instance: Any) -> bool:
        ours = cls in SUBSTITUTES and isinstance(instance, fastdata.Loader | AcceleratedLoader | cls.__mro__[1])
        return ours or super().__instancecheck__(instance)


SUBSTITUTES: list[type] = []
SUBSTITUTES += [Substituted(base.__name__, (base,), {"__module__": base.__module__}) for base in (DataLoader, StatefulDataLoader)]
PLACES = [(torch.utils.data, SUBSTITUTES[0]), (torch.utils.data.dataloader, SUBSTITUTES[0])]
PLACES += [(sys.modules["torchdata.stateful_dataloader"], SUBSTITUTES[1])]


def seen_through(module: ModuleType, **changed: Any) -> ModuleType:
    """A module in which some names differ."""
    view = ModuleType(module.__name__)
    view.__dict__.update(changed, __getattr__=lambda name: getattr(module, name))
    return view


def pytest_configure() -> None:
    """While tests are imported, DataLoader is the substitute; the client itself has been imported before, with torch's."""
    for name in CLIENTS:
        __import__(name)
    if KIND == "accelerate":
        accelerate.Accelerator.prepare = prepare
    for module, substitute in PLACES:
        setattr(module, substitute.__name__, substitute)


def pytest_collection_finish(session: pytest.Session) -> None:
    for module, substitute in PLACES:
        setattr(module, substitute.__name__, substitute.__mro__[1])
    data = seen_through(torch.utils.data, DataLoader=SUBSTITUTES[0])
    view = seen_through(torch, utils=seen_through(torch.utils, data=data))
    for module in {item.module for item in session.items if isinstance(item, pytest.Function)}:
        if "torch.utils.data.DataLoader" in inspect.getsource(module):
            module.torch = view


def pytest_runtest_setup() -> None:
    MADE.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    try:
        return (yield)
    finally:
        item.user_properties.append(("made", dict(MADE)))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for outcome in ("passed", "failed", "skipped", "xfailed", "xpassed"):
        for report in terminalreporter.stats.get(outcome, []):
            made = dict(report.user_properties).get("made")
            if made is None and report.when == "call":
                made = {}
            terminalreporter.write_line(f"{outcome} {report.nodeid} {made}")
