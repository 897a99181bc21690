"""fastdata doctor: right verdicts on rigged cases, a model of the loop that agrees with a simulation, and the command."""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import fastdata
from fastdata import LMDBDataset, Loader, RandomResizedCrop, doctor
from fastdata.diagnosis.advice import Memory, advise
from fastdata.diagnosis.conditions import Conditions, look
from fastdata.diagnosis.doctor import diagnose
from fastdata.diagnosis.parts import Parts
from fastdata.diagnosis.pipeline import Costs, Loop
from fastdata.diagnosis.storage import Span, measure_storage
from fastdata.diagnosis.subject import subject_of
from support import MAIN, encode, picture, run, write_pictures

SECONDS = 1.2  # of a diagnosis: enough for effects of a factor
QUIET = Conditions(cores=2)
JPEG = encode(picture(0, 700, 900))


class Rigged(Dataset[Any]):
    """Samples of which one part is slow."""

    def __init__(self, *, wait: float = 0.0, decode: bool = False, rounds: int = 0, shape: tuple[int, ...] = (8,)) -> None:
        self.wait, self.decode, self.rounds, self.shape = wait, decode, rounds, shape

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.wait:
            time.sleep(self.wait)  # as a disk or a network does
        if self.decode:
            cv2.imdecode(np.frombuffer(JPEG, np.uint8), cv2.IMREAD_COLOR)
        for _ in range(self.rounds):
            hashlib.sha256(JPEG).digest()
        return torch.zeros(self.shape)


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Slow:
    """A batch that is slow to copy."""

    def __init__(self, items: list[torch.Tensor]) -> None:
        self.images = torch.stack(items)

    def to(self, device: torch.device, non_blocking: bool = False) -> Slow:
        time.sleep(0.03)
        return self


def rigged(workers: int = 1, collate: Any = None, **parts: Any) -> DataLoader[Any]:
    return DataLoader(Rigged(**parts), 4, num_workers=workers, collate_fn=collate)


def quick(batch: Any) -> None:
    """A step that takes no time."""


# ----------------------------------------------------------------------------------------------------------- the verdict


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_throttled_reader_is_storage(workers: int) -> None:
    found = doctor(rigged(workers, wait=0.01), quick, seconds=SECONDS)
    assert found.verdict == "storage" and found.shares["storage"] > 0.6
    assert 0.008 < found.loop.costs.waiting < 0.03  # 0.010, and what a loaded machine adds
    best = found.advice[0]
    assert best.gain is not None and best.gain > 1.5 and ("num_workers=" in best.paste or "RAMDataset" in best.paste)
    assert any("RAMDataset" in one.paste for one in found.advice)


@pytest.mark.slow
@pytest.mark.parametrize(("parts", "longest"), [({"decode": True}, "decode"), ({"rounds": 8}, "transform")])
def test_heavy_decoding_and_a_slow_transform_are_the_cpu(parts: dict[str, Any], longest: str) -> None:
    found = doctor(rigged(**parts), quick, seconds=SECONDS)
    costs = vars(found.loop.costs)
    assert found.verdict == "CPU" and found.shares["CPU"] > 0.6
    assert max(costs, key=lambda name: costs[name]) == longest and costs[longest] > 0.7 * found.loop.costs.work
    assert longest != "transform" or any("transform" in one.title for one in found.advice)


def test_a_slow_way_to_the_device_is_the_copy() -> None:
    found = doctor(rigged(collate=Slow), quick, seconds=SECONDS)
    assert found.verdict == "copy" and found.shares["copy"] > 0.6
    assert 4 * found.loop.costs.copy == pytest.approx(0.03, rel=0.5)  # a batch has four samples


def test_a_heavy_model_is_the_model_and_faster_steps_are_tried() -> None:
    model = nn.Linear(8, 1)

    def loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
        busy(0.002 if torch.is_autocast_enabled("cpu") else 0.02)
        return model(batch).float().flatten()

    found = doctor(rigged(), (model, loss), seconds=SECONDS)
    assert found.verdict == "model" and found.shares["model"] > 0.6 and found.needed is not None and found.needed < 1
    assert "bfloat16" in found.advice[0].title and (found.advice[0].gain or 0) > 1.2
    assert all(weight.grad is None for weight in model.parameters())
    assert "the model is the limit" in str(found)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(("rate", "gain"), [(200.0, 1.0), (120.0, 1.67)])
def test_too_many_workers(rate: float, gain: float) -> None:
    """Nine workers on two cores are as fast as two, or slower."""
    loop = Loop(Costs(decode=0.01), QUIET, {0: 100.0, 1: 100.0, 2: 200.0, 9: rate})
    subject, memory = subject_of(rigged(9)), Memory(9, 2, 1 << 20, 1, in_shm=True)
    (fewer,) = advise(subject, loop, memory, [], [], None, crop=None, is_float=False, gpu=False, noise=1.1, untried="")
    assert fewer.gain == pytest.approx(gain, rel=0.03) and "num_workers=2" in fewer.paste
    assert ("saves 748.7 MB" in fewer.title) == (gain == 1)  # seven processes of 100 MiB, and 14 batches


def test_a_full_shared_memory_is_said_before_anything_dies_of_it() -> None:
    loader = DataLoader(Rigged(shape=(25_000,)), 64, num_workers=2)  # 0.1 MB a sample
    found = diagnose(subject_of(loader), seconds=0.5, conditions=Conditions(cores=2, shm=8_000_000))
    assert found.verdict == "memory" and "/dev/shm" in found.advice[0].title and "bus error" in found.advice[0].title
    assert "--shm-size" in found.advice[0].paste and found.advice[0].gain is None
    assert "(2 workers x 2 ahead + 1) x 6.4 MB a batch = 32.0 MB in /dev/shm" in str(found)
    enough = diagnose(subject_of(loader), seconds=0.5, conditions=Conditions(cores=2, shm=33_000_000))
    assert enough.verdict != "memory"


@contextmanager
def burning(count: int) -> Iterator[None]:
    """Programs that are no descendants of this one keep cores busy."""
    command = f"for k in $(seq {count}); do '{sys.executable}' -c 'while True: pass' >/dev/null 2>&1 & echo $!; done"
    pids = [int(pid) for pid in subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, check=True).stdout.split()]
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_other_load_is_seen_and_makes_the_diagnosis_unsure() -> None:
    cores = look(0.01).cores
    with burning(2 * cores):
        time.sleep(0.2)
        conditions = look(0.5)
        found = doctor(rigged(rounds=4), seconds=SECONDS)
    assert conditions.others > 0.7 * cores and conditions.free < 0.3 * cores
    assert found.sure == "not sure" and "other programs keep" in found.doubts[0]
    (quiet,) = (one for one in found.advice if "end other programs" in one.title)
    assert quiet.gain is not None and 1.05 < quiet.gain < 20


def test_balanced_parts_are_nothing_and_no_model_is_no_verdict_on_one() -> None:
    balanced = Loop(Costs(decode=0.01, step=0.01), QUIET)
    assert balanced.verdict(1) == ("nothing", pytest.approx(1.0))
    assert balanced.verdict(2)[0] == "model" and balanced.verdict(0)[1] == pytest.approx(2.0)
    found = doctor(rigged(0), seconds=0.3)
    assert found.needed is None and found.together is None and found.shares["model"] == 0


# ---------------------------------------------------------------------------------------------------- the model of a loop


def simulated(costs: Costs, workers: int, cores: int, overlap: bool) -> float:
    """Seconds per batch of a loop whose workers make batches in turns, by following 400 batches one by one."""
    make, wait = costs.decode, costs.waiting
    ready = [0.0] * workers  # when each worker has finished
    free = [0.0] * cores  # when each core is free
    heapq.heapify(free)
    loop = copied = taken = 0.0
    for k in range(400):
        if not workers:
            loop += make + wait + costs.copy + costs.step
            continue
        began = max(heapq.heappop(free), ready[k % workers] + wait)
        ready[k % workers] = began + make
        heapq.heappush(free, began + make)
        taken = max(taken + costs.receive, ready[k % workers])
        if overlap:
            copied = max(copied, taken) + costs.copy
            loop = max(loop, copied) + costs.step
        else:
            loop = max(loop, taken) + costs.copy + costs.step
    return loop / 400


times = st.floats(0.001, 0.1)


@given(times, st.floats(0, 0.1), st.floats(0, 0.1), st.floats(0, 0.1), times, st.integers(0, 4), st.booleans())
def test_the_model_of_a_loop_agrees_with_a_simulation(
    decode: float, waiting: float, receive: float, copy: float, step: float, workers: int, overlap: bool
) -> None:
    costs = Costs(decode=decode, waiting=waiting, receive=receive, copy=copy, step=step)
    loop = Loop(costs, Conditions(cores=4), overlap=overlap and workers > 0)
    assert loop.seconds(workers) == pytest.approx(simulated(costs, workers, 4, loop.overlap), rel=0.05)
    assert sum(loop.shares(workers).values()) == pytest.approx(1)
    assert all(loop.gain(resource, workers) >= 1 - 1e-9 for resource in ("storage", "CPU", "copy", "model"))


def test_measured_rates_are_kept_and_the_others_are_between_or_follow_them() -> None:
    loop = Loop(Costs(decode=0.01), Conditions(cores=8), {0: 90.0, 1: 80.0, 4: 240.0})
    assert [round(loop.rate(k)) for k in (0, 1, 4)] == [90, 80, 240]
    assert 80 < loop.rate(2) < loop.rate(3) < 240 and loop.rate(8) == pytest.approx(480) and loop.rate(20) == pytest.approx(480)
    halved = loop.changed(decode=0.005)
    assert [round(halved.rate(k)) for k in (0, 1, 4)] == [180, 160, 480]


def test_cores_are_shared_with_other_programs() -> None:
    assert Conditions(cores=4).cores_for(3) == 3 and Conditions(cores=4).cores_for(9) == 4
    loaded = Conditions(cores=2, others=2.0)
    assert loaded.cores_for(2) == pytest.approx(1.0) and loaded.cores_for(1) == pytest.approx(2 / 3)
    costs = Costs(decode=0.01, step=0.02, step_cpu=0.02)
    assert Loop(costs, loaded).seconds(0) == pytest.approx(0.045) and Loop(costs, QUIET).seconds(0) == pytest.approx(0.03)
    assert Loop(costs, loaded, {0: 50.0}).what_if(conditions=QUIET).rate(0) == pytest.approx(75)


# ------------------------------------------------------------------------------------------------------------ the measures


def test_parts_are_timed_without_the_parts_inside_them_and_functions_are_put_back(tmp_path: Path) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(JPEG)
    before = cv2.imdecode, cv2.resize, open
    parts = Parts()
    with parts.timed(1), parts.watched():
        with open(path, "rb") as file:
            image = cv2.imdecode(np.frombuffer(file.read(), np.uint8), cv2.IMREAD_COLOR)
        cv2.resize(image, (50, 50))
        busy(0.05)
        time.sleep(0.05)
        (tmp_path / "written").write_bytes(b"")
    assert (cv2.imdecode, cv2.resize, open) == before
    assert [*parts.files] == [str(path)]
    assert parts.decode_s > 0 and parts.resize_s > 0 and parts.transform_s == pytest.approx(0.05, rel=0.5)
    assert parts.waiting_s == pytest.approx(0.05, rel=0.5)


def test_storage_is_read_cold_and_warm(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(os.urandom(1 << 20))
    spans = [Span(str(path), k << 16, 1 << 16) for k in range(16)]
    found = measure_storage(spans, 4e9, 0.3)
    assert found is not None and found.sample_bytes == 1 << 16 and 0 < found.warm_s < 0.05
    mounts = [p for p in psutil.disk_partitions(all=True) if tmp_path.is_relative_to(p.mountpoint)]
    on_disk = max(mounts, key=lambda p: len(p.mountpoint)).fstype in ("ext4", "xfs", "btrfs")  # and not in memory
    assert (found.cold_s is None) == (found.many_s is None) and (found.cold_s is not None or not on_disk)
    assert found.misses(8e9, 1e5, 4e9) == (0, 0)
    if found.cold_s is not None:
        assert found.misses(1e9, 1 << 16, 4e9)[0] == pytest.approx(0.75 * found.cold_s)
    assert measure_storage([], None, 0.1) is None


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a tmpfs")
def test_what_cannot_be_dropped_from_memory_is_not_called_cold() -> None:
    path = Path(f"/dev/shm/fastdata-test-{os.getpid()}")
    try:
        path.write_bytes(bytes(1 << 16))
        found = measure_storage([Span(str(path), 0, 1 << 16)], None, 0.1)
    finally:
        path.unlink()
    assert found is not None and found.cold_s is None and found.many_s is None


class Counting(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return (torch.tensor([k]) for k in range(10))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loader", "workers"),
    [
        (DataLoader(Counting(), 3), 0),
        (DataLoader(Rigged(), batch_size=None), 0),
        (DataLoader(Rigged(), batch_sampler=[[0, 1], [2, 3]], num_workers=1), 1),
        ([torch.zeros(4, 2)] * 3, 0),
        (Loader(Rigged(), 4, num_workers=1), 1),
    ],
)
def test_any_loader_can_be_measured(loader: Any, workers: int) -> None:
    found = doctor(loader, quick, seconds=0.2)
    assert found.workers == workers and found.verdict in ("storage", "CPU", "copy", "model", "nothing")
    assert found.together is None or found.together > 0
    assert json.loads(found.to_json())["verdict"] == found.verdict


class Opening(Rigged):
    """Opens a file at first use, as datasets of HDF5 files do, and must not be used by a process that did not open it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.owner, self.file = path, 0, None

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.file is None:
            self.owner, self.file = os.getpid(), self.path.open("rb")
        assert self.owner == os.getpid(), "workers share an open file with another process"
        return torch.zeros(8)


def test_workers_share_no_file_that_a_dataset_opened(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(1000))
    loader = DataLoader(Opening(tmp_path / "x"), 4, num_workers=1)
    found = doctor(loader, quick, seconds=0.3)
    loader.dataset.file.close()
    assert found.together is not None and set(found.loop.measured) >= {0, 1, 2}
    assert found.storage is None  # samples share the file


class Failing(Rigged):
    def __getitem__(self, index: int) -> torch.Tensor:
        raise KeyError(f"no sample {index}")


class Dying(Rigged):
    def __getitem__(self, index: int) -> torch.Tensor:
        os._exit(3)


def test_errors_of_a_dataset_are_raised_here() -> None:
    with pytest.raises(KeyError, match="no sample"):
        doctor(DataLoader(Failing(), 4), seconds=0.1)
    with pytest.raises(fastdata.LoaderError, match="died, with exit code 3"):
        doctor(DataLoader(Dying(), 4), seconds=0.1)


@pytest.mark.parametrize(
    ("loader", "step", "error"),
    [(3, None, "a DataLoader, a Loader or another iterable"), ([], None, "no batches"), (rigged(), "x", "a function of a batch")],
)
def test_what_cannot_be_measured(loader: Any, step: Any, error: str) -> None:
    with pytest.raises((TypeError, fastdata.FastDataError), match=error):
        doctor(loader, step, seconds=0.1)
    with pytest.raises(ValueError, match="seconds is 0"):
        doctor(rigged(), seconds=0)


# ------------------------------------------------------------------------------------------------- folders, stores, commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 JPEG files of 200 x 300, one of which is none, in two class folders."""
    root = tmp_path_factory.mktemp("doctor") / "in"
    for k, name in enumerate(("ant", "bee")):
        write_pictures(root / name, 20, height=200, width=300, seed=20 * k, ending=".jpg")
    (root / "bee" / "00.jpg").write_bytes(b"no image")
    return root


@pytest.mark.slow
@pytest.mark.parametrize("crop", [96, 95])
def test_a_folder_of_images(folder: Path, tmp_path: Path, crop: int) -> None:
    done = run(*MAIN, "doctor", folder, "--crop", crop, "--batch-size", 8, "--seconds", 12, "--plot", tmp_path / "d.png", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["samples"], found["batch_size"], found["verdict"]) == (40, 8, "CPU")
    costs = found["loop"]["costs"]
    assert all(costs[part] > 0 for part in ("read", "decode", "resize", "transform", "collate"))
    sizes = {(one["codec"], one["size"]): one for one in found["variants"]}
    left_out = {(codec, None if codec == "original" else 112) for codec in found["left_out"]}  # on a loaded machine
    assert {*sizes} | left_out == {("jpeg", 112), ("rgb", 112), ("original", None)}
    for (codec, size), one in sizes.items():
        made = fastdata.prep(folder, tmp_path / f"{codec}.fds", codec=codec, size=size, workers=1).out
        real = sum(file.stat().st_size for file in made.glob("*/shard-*.mdb"))
        assert one["disk_bytes"] == pytest.approx(real, rel=0.2) and 0 < one["memory_bytes"] < one["disk_bytes"] and one["rate"] > 0
    best = found["advice"][0]
    assert (
        "prepare a store" in best["title"] and best["gain"] > 1.5 and f"fastdata-prep {folder} in.fds --size 112" in best["paste"]
    )
    image = cv2.imread(str(tmp_path / "d.png"))
    assert image is not None and image.shape[1] == 1575
    edge = np.concatenate([image[:2].reshape(-1), image[-2:].reshape(-1), image[:, :2].reshape(-1), image[:, -2:].reshape(-1)])
    assert edge.min() == 255 and 0.03 < (image.min(2) < 200).mean() < 0.5


@pytest.mark.slow
def test_a_store_and_a_model_by_name(folder: Path, tmp_path: Path) -> None:
    store = fastdata.prep(folder, tmp_path / "x.fds", size=(64, 190), workers=1).out
    (tmp_path / "mine.py").write_text(
        "from fastdata import LMDBDataset, Loader, CenterCrop\n"
        "def step():\n    return lambda batch: batch[0].float().mean()\n"
        f"def loader():\n    return Loader(LMDBDataset({str(store)!r}, crop=CenterCrop(32)), 8, num_workers=1)\n"
    )
    done = run(*MAIN, "doctor", store, "--model", "mine:step", "--crop", 48, "--seconds", 8, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for said in ("verdict ", "| decode", "| step of the model", "together, measured", "<- yours", "memory ", "storage ", "| jpeg"):
        assert said in done.stdout
    assert "read the stored size 64 in place of 190" in done.stdout
    again = run(*MAIN, "doctor", "--loader", "mine:loader", "--tune", "--seconds", 2, cwd=tmp_path)
    call = again.stdout.splitlines()[-1]
    assert again.returncode == 0 and call.startswith("Loader(dataset, batch_size=8, shuffle=True, num_workers=")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ([], "nothing to measure: give a store"),
        (["--loader", "no.such:thing"], "no module 'no.such'"),
        (["--loader", "json"], "must be MODULE:FUNCTION"),
        (["--loader", "train.py:make"], "try train:make"),
        (["--loader", "json:nothing"], "the module 'json' has no function 'nothing'"),
        (["--loader", "json:dumps", "--crop", "8"], "--crop is about a loader that doctor makes"),
        ([".", "--size", "8"], "--size is about a store"),
        ([".", "--tune", "--plot", "x.png"], "--tune measures a loader alone"),
        ([".", "--plot", "x.jpg"], "does not end in .png"),
    ],
)
def test_wrong_use(options: list[str], error: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from fastdata.cli import main

    monkeypatch.setattr(sys, "argv", ["fastdata", "doctor", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and error in capsys.readouterr().err


MINE = """
import torch
from torch import nn

if WHERE == "module":
    raise RuntimeError("mine, at import")

class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, k):
        if WHERE == "dataset": return {}["mine, a sample"]
        return torch.ones(3)

def loader():
    if WHERE == "loader": raise OSError("mine, making a loader")
    return 3 if WHERE == "no loader" else torch.utils.data.DataLoader(Data(), 4)

def loss(model, batch):
    if WHERE == "step": raise ValueError("mine, a step")
    return model(batch)

def model():
    if WHERE == "model": raise ValueError("mine, making a model")
    return 3 if WHERE == "no model" else (nn.Linear(4 if WHERE == "layer" else 3, 1), loss)
"""


@pytest.mark.parametrize(
    ("where", "code", "said"),
    [
        ("module", 1, "--loader mine:loader failed:|in <module>|RuntimeError: mine, at import"),
        ("loader", 1, "--loader mine:loader failed:|in loader|OSError: mine, making a loader"),
        ("dataset", 1, "--loader mine:loader failed:|in __getitem__|KeyError: 'mine, a sample'"),
        ("model", 1, "--model mine:model failed:|in model|ValueError: mine, making a model"),
        ("step", 1, "--model mine:model failed:|in loss|ValueError: mine, a step"),
        ("layer", 1, "--model mine:model failed:|in loss|RuntimeError: "),
        ("no loader", 2, "--loader mine:loader: doctor measures a DataLoader, a Loader or another iterable|found a int"),
        ("no model", 2, "--model mine:model: a step is a function of a batch, or (model, loss_fn)"),
    ],
)
def test_a_function_that_fails_is_named_with_its_own_traceback(
    where: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastdata.cli import main

    (tmp_path / "mine.py").write_text(MINE.replace("WHERE", repr(where)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    options = ["--loader", "mine:loader", "--model", "mine:model", "--seconds", "0.1"]
    monkeypatch.setattr(sys, "argv", ["fastdata", "doctor", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    found = capsys.readouterr().err
    assert ended.value.code == code and found.startswith("Error: ")
    for part in said.split("|"):
        assert part in found
    frames = re.findall(r'^  File "(.*)"', found, re.MULTILINE)
    assert not frames or frames[0] == str(tmp_path / "mine.py")
    ours = str(Path(fastdata.__file__).parent)
    assert not [file for file in frames if file.startswith(ours)]


@pytest.mark.slow
def test_a_dataset_of_a_store_is_measured_with_other_arguments(folder: Path, tmp_path: Path) -> None:
    store = fastdata.prep(folder, tmp_path / "x.fds", size=128, workers=1).out
    dataset = LMDBDataset(store, crop=RandomResizedCrop(32), hflip=0.5)
    found = doctor(Loader(dataset, 8, num_workers=0), seconds=0.5)
    assert found.loop.costs.decode > 0 and found.loop.costs.resize > 0 and found.storage is not None
    assert found.memory.batch_bytes == 8 * (3 * 32 * 32 + 8) and found.memory.in_shm is False
    assert dataset.crop == RandomResizedCrop(32)


@pytest.mark.slow
def test_every_snippet_of_the_docs_runs(tmp_path: Path) -> None:
    """With a second for each diagnosis."""
    for name in ("cat", "dog"):
        write_pictures(tmp_path / "images" / name, 10, height=90, width=120, ending=".jpg")
    fastdata.prep(tmp_path / "images", tmp_path / "images.fds", size=64, workers=1)
    text = (Path(__file__).parent.parent / "docs" / "doctor.md").read_text()
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text(next(block for language, block in blocks if "def loader" in block))
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for language, block in blocks:
        block = block.replace("fastdata doctor ", "fastdata doctor --seconds 1 --crop 48 ").replace("seconds=10", "seconds=1")
        block = block.replace("--crop 48 --loader", "--loader")  # which makes its own crops
        command = ["bash", "-euc", block] if language == "bash" else [sys.executable, "-W", "error", "-c", block]
        done = run(*command, cwd=tmp_path, env=env)
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    assert len(blocks) == 3 and (tmp_path / "doctor.png").stat().st_size > 10_000
