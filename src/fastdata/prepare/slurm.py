"""Preparing on Slurm: a script that submits an array job of tasks, and a job that finishes the store after them."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from fastdata.errors import PrepError
from fastdata.remote.url import Storage, as_words
from fastdata.sources.options import StrPath

__all__ = ["slurm_script", "submit"]

MOST_TASKS = 1000  # by default, Slurm allows no larger index than that
OURS = ("--array", "-a", "--dependency", "-d", "--parsable", "--wrap")
SCRIPT = """\
#!/bin/bash
# Prepares {out}: an array of tasks, then a job that finishes the store. Run it again to make what was lost.
set -e
tasks=$(sbatch --parsable --job-name=fastdata-prep --array=0-{last} --cpus-per-task={workers} --requeue{options} <<'END'
#!/bin/bash
exec {command} run {out} --of {tasks} --workers {workers} --progress plain{places}
END
)
sbatch --job-name=fastdata-finish --dependency=afterok:"${{tasks%%;*}}" --kill-on-invalid-dep=yes{options} <<'END'
#!/bin/bash
exec {command} finish {out}{places}
END
"""


def slurm_script(
    out: Path | str,
    shards: int,
    *,
    tasks: int | None,
    workers: int | None,
    options: str,
    scratch: StrPath | None = None,
    storage: Storage | None = None,
) -> str:
    """Return a script for bash that submits the tasks of a plan to Slurm.

    Args:
        out: the folder with the plan, on a disk that all nodes share, or a URL.
        shards: how many the plan has.
        tasks: the size of the array; None: a task for each shard, but at most 1000.
        workers: CPUs of a task; None: 1.
        options: more options of sbatch, as typed in a shell.
        scratch, storage: options of the tasks.

    Raises:
        ValueError: an option is the script's own, or a secret.
    """
    more = shlex.split(options)
    if taken := [option for option in more if option.split("=")[0] in OURS]:
        raise ValueError(
            f"--sbatch {taken[0]} would change how tasks are counted or ordered: leave it out; --tasks is their number"
        )
    places = "".join(f" --storage {shlex.quote(one)}" for one in as_words(storage or {}))
    if scratch is not None:
        places += f" --scratch {shlex.quote(str(Path(scratch).absolute()))}"
    count = min(tasks or MOST_TASKS, shards)
    return SCRIPT.format(
        out=shlex.quote(str(out)),
        places=places,
        tasks=count,  # printed here: SLURM_ARRAY_TASK_COUNT is smaller if some tasks are submitted again
        last=count - 1,
        workers=workers or 1,
        options="".join(f" {shlex.quote(option)}" for option in more),
        command=f"{shlex.quote(sys.executable)} -m fastdata prep",
    )


def submit(script: str) -> None:
    """Run the script. sbatch prints the numbers of the jobs.

    Raises:
        PrepError: there is no sbatch here, or it refuses.
    """
    if shutil.which("sbatch") is None:
        raise PrepError("--submit needs sbatch, which is not on this machine: leave --submit out, and run the script where it is")
    if code := subprocess.run(["bash"], input=script, text=True, check=False).returncode:
        raise PrepError(f"sbatch has refused the tasks (exit code {code}); its options are those of --sbatch")
