"""Preparing in tasks: in any order, at once, twice, killed at any moment, on the wrong machine. The bytes are those of `prep`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import pytest

import fastdata
from fastdata.errors import PrepError
from fastdata.store.store import Store, verify
from support import PREP, run, start, tables, tree, until, write_pictures
from test_golden_kinds import STORES, inputs

OPTIONS = ("--size", "256")
QUICK = ("--workers", "1")


@pytest.fixture
def planned(large: Path, tmp_path: Path) -> Path:
    """A plan for `large`."""
    found = fastdata.prep_plan(large, tmp_path / "o.fds", size=256)
    assert not found.finished and found.inputs == 320 and found.shards > 5
    return tmp_path / "o.fds"


@pytest.mark.parametrize("name", [n if n in ("jpeg", "classes") else pytest.param(n, marks=pytest.mark.slow) for n in STORES])
def test_tasks_make_the_bytes_of_one_run(name: str, tmp_path: Path) -> None:
    source, options = STORES[name]
    options = {key: inputs() / value if key == "masks" else value for key, value in options.items()}
    whole = fastdata.prep(inputs() / source, tmp_path / "one.fds", workers=1, **options)
    fastdata.prep_plan(inputs() / source, tmp_path / "tasks.fds", **options)
    for task in (2, 0, 1):
        fastdata.prep_run(tmp_path / "tasks.fds", task=task, of=3, workers=1)
    summary = fastdata.prep_finish(tmp_path / "tasks.fds")
    assert tree(tmp_path / "tasks.fds") == tree(tmp_path / "one.fds")
    for figure in ("inputs", "kept", "rejected", "bytes", "tokens", "notes", "first_reject", "originals"):
        assert getattr(summary, figure) == getattr(whole, figure), figure


@pytest.mark.slow
def test_tasks_run_twice_at_the_same_time(planned: Path, undisturbed: dict[str, bytes | None]) -> None:
    command = (*PREP, "run", planned, "--of", "2", "--task")
    tasks = [start(*command, str(task), *QUICK, stderr=subprocess.PIPE) for task in (0, 1, 0)]
    for task in tasks:
        assert b"rror" not in task.communicate(timeout=180)[1] and task.returncode == 0
    finishes = [start(*PREP, "finish", planned, stderr=subprocess.PIPE) for _ in range(3)]
    for finish in finishes:
        assert finish.communicate(timeout=180)[1] == b"" and finish.returncode == 0
    assert tree(planned) == undisturbed


@pytest.mark.slow
def test_a_task_that_the_end_overtakes_is_done(planned: Path, undisturbed: dict[str, bytes | None]) -> None:
    """It was thought dead: others have made its shards, and the store, while it stood still."""
    late = start(*PREP, "run", planned, *QUICK, stderr=subprocess.PIPE)
    until(lambda: len(tables(planned)) >= 3)
    os.killpg(late.pid, signal.SIGSTOP)
    fastdata.prep_run(planned, workers=2)
    fastdata.prep_finish(planned)
    os.killpg(late.pid, signal.SIGCONT)
    assert b"rror" not in late.communicate(timeout=180)[1] and late.returncode == 0
    assert tree(planned) == undisturbed


def test_a_second_plan_of_the_same_keeps_what_is_finished(large: Path, planned: Path, photos: Path) -> None:
    fastdata.prep_run(planned, task=0, of=8, workers=1)
    before = {path: path.stat().st_ino for path in tables(planned)}
    (planned / "work/256-00007.gone-1-ab.tmp").write_bytes(b"of a killed task")
    fastdata.prep_plan(large, planned, size=256)
    assert {path: path.stat().st_ino for path in tables(planned)} == before and not list(planned.rglob("*.tmp"))
    with pytest.raises(PrepError, match=r"(?s)was made, or begun, with other options or inputs.*sizes 256, now 128"):
        fastdata.prep_plan(large, planned, size=128)
    fastdata.prep_plan(photos, planned, size=64, overwrite=True)
    fastdata.prep_run(planned, workers=1)
    assert len(Store(fastdata.prep_finish(planned).out)) == 56 and list(verify(planned)) == []


@pytest.mark.parametrize("change", [lambda b: b[:-40], lambda b: b"{}", lambda b: b.replace(b'"quality": 90', b'"quality": 91')])
def test_a_damaged_plan_is_an_error(planned: Path, change: Callable[[bytes], bytes]) -> None:
    path = planned / "work/plan.json"
    path.write_bytes(change(path.read_bytes()))
    for part in (fastdata.prep_run, fastdata.prep_finish):
        with pytest.raises(PrepError, match=r"plan.json is damaged .*; start again with overwrite"):
            part(planned)


def test_no_plan(tmp_path: Path, large: Path) -> None:
    for part in (fastdata.prep_run, fastdata.prep_finish):
        with pytest.raises(PrepError, match=r"has no plan on .*; make a plan with fastdata-prep plan SOURCE"):
            part(tmp_path / "nothing")
    with pytest.raises(TypeError, match=r"source is a list, which other machines cannot read"):
        fastdata.prep_plan([], tmp_path / "o.fds")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_machine_that_makes_other_bytes_is_refused(planned: Path) -> None:
    if not cv2.checkHardwareSupport(11):
        pytest.skip("this machine has no AVX2")
    found = run(*PREP, "run", planned, env={**os.environ, "OPENCV_CPU_DISABLE": "AVX2"})
    assert found.returncode == 2 and "  AVX2 in OpenCV yes, here no\n" in found.stderr
    assert not tables(planned)


def test_another_version_of_a_library_is_refused(planned: Path, tmp_path: Path, large: Path) -> None:
    (tmp_path / "site/lmdb-0.0.1.dist-info").mkdir(parents=True)
    (tmp_path / "site/lmdb-0.0.1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: lmdb\nVersion: 0.0.1\n")
    path = os.pathsep.join(filter(None, [str(tmp_path / "site"), os.environ.get("PYTHONPATH")]))
    for command in (("run", planned), ("finish", planned), ("plan", large, planned, *OPTIONS)):
        found = run(*PREP, *command, env={**os.environ, "PYTHONPATH": path})
        assert found.returncode == 2, command
        assert "  lmdb " in found.stderr and ("here 0.0.1" in found.stderr or "now 0.0.1" in found.stderr)
    assert not tables(planned)


def test_inputs_that_are_not_there_are_an_error_and_not_rejects(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path / "in/a", 9)
    fastdata.prep_plan(tmp_path / "in", tmp_path / "o.fds")
    (tmp_path / "in").rename(tmp_path / "elsewhere")
    with pytest.raises(PrepError, match=r"in, the folder of inputs for .*, is missing or empty on .*: mount it"):
        fastdata.prep_run(tmp_path / "o.fds", workers=1)
    (tmp_path / "in").mkdir()
    with pytest.raises(PrepError, match=r"in, the folder of inputs for .*, is missing or empty on .*: mount it"):
        fastdata.prep_run(tmp_path / "o.fds", workers=1)
    (tmp_path / "in/a").mkdir()
    (tmp_path / "elsewhere/a/04.png").rename(paths[4])
    assert fastdata.prep_run(tmp_path / "o.fds", workers=1).rejected == 8


def test_a_missing_ray_is_named(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in/a", 20)
    code = "import sys; sys.modules['ray'] = None; from fastdata.entry import prep_main; prep_main()"
    found = run(sys.executable, "-c", code, tmp_path / "in", tmp_path / "o.fds", "--size", "16", "--engine", "ray")
    assert found.returncode == 1 and "ray is needed, but not installed: pip install" in found.stderr
    assert not list((tmp_path / "o.fds").rglob("*.tmp"))


SCALE = (Path(__file__).parent.parent / "docs/scale.md").read_text()


@pytest.fixture
def commands(tmp_path: Path) -> dict[str, str]:
    """An environment in which `fastdata` and `fastdata-prep` are those of this Python."""
    for name, part in (("fastdata", ""), ("fastdata-prep", "prep ")):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m fastdata {part}"$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}/bin{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def test_the_recipe_for_slurm(commands: dict[str, str], tmp_path: Path) -> None:
    """What the job and the last command run, with the variables that Slurm would set: in any order, one of them twice."""
    write_pictures(tmp_path / "photos/a", 60, height=300, width=400)
    plan, submit, finish = re.findall(r"^### Slurm\n.*?^```console\n(.*?)^```", SCALE, re.MULTILINE | re.DOTALL)[0].splitlines()
    (job,) = re.findall(r"^### Slurm\n.*?^```text\n(#!/bin/bash\n.*?)^```", SCALE, re.MULTILINE | re.DOTALL)
    first, last = map(int, re.findall(r"--array=(\d+)-(\d+)", submit)[0])
    assert first == 0 and f"--of {last + 1} " in job
    (tmp_path / "job.sh").write_text(job.replace(f"--of {last + 1} ", "--of 3 "))
    assert run("bash", "-euc", plan, cwd=tmp_path, env=commands).returncode == 0
    for task in "2010":
        variables = {"SLURM_ARRAY_TASK_ID": task, "SLURM_CPUS_PER_TASK": "1"}
        made = run("bash", "job.sh", cwd=tmp_path, env={**commands, **variables})
        assert made.returncode == 0 and f"task {task} of 3: " in made.stdout, made.stderr
    (command,) = re.findall(r"--wrap '(.*)'", finish)
    assert run("bash", "-euc", command, cwd=tmp_path, env=commands).returncode == 0
    fastdata.prep(tmp_path / "photos", tmp_path / "local.fds", size=256, workers=1)
    assert tree(tmp_path / "photos.fds") == tree(tmp_path / "local.fds")
