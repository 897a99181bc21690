"""What is installed: wheels and source distributions in a clean environment."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from support import run

ROOT = Path(__file__).parent.parent
USE = """
import fastdata, numpy as np, sys
assert "site-packages" in fastdata.__file__ and fastdata.__version__
made = fastdata.prep([np.full((40, 50, 3), k, np.uint8) for k in range(6)], sys.argv[1], labels=[0, 1, 0, 1, 0, 1], workers=1)
with fastdata.Loader(fastdata.open(made.out, crop=fastdata.CenterCrop(32)), 3, num_workers=1) as loader:
    print([list(images.shape) for images, _ in loader])
"""


@pytest.mark.slow
def test_a_wheel_of_the_source_distribution_installs_in_a_clean_environment(tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
    made = run(sys.executable, "-m", "build", ROOT, "--outdir", tmp_path / "dist", seconds=300)
    assert made.returncode == 0, made.stdout + made.stderr
    (source,), (wheel,) = (tmp_path / "dist").glob("fastdata_torch-*.tar.gz"), (tmp_path / "dist").glob("fastdata_torch-*.whl")
    assert source.stat().st_size < 3 << 20
    venv.create(tmp_path / "clean", with_pip=False)
    python = tmp_path / "clean/bin/python"
    installed = run(*pip, "--python", python, "install", "-c", ROOT / "constraints.txt", wheel, seconds=600)
    assert installed.returncode == 0, installed.stderr
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    used = run(python, "-W", "error", "-c", USE, tmp_path / "o.fds", cwd=tmp_path, env=env)
    assert used.stdout == "[[3, 3, 32, 32], [3, 3, 32, 32]]\n", used.stderr
    said = run(tmp_path / "clean/bin/fastdata", "info", tmp_path / "o.fds", cwd=tmp_path, env=env)
    assert said.returncode == 0 and "6 images" in said.stdout, said.stderr
    said = run(tmp_path / "clean/bin/fastdata", "report", tmp_path / "o.fds", cwd=tmp_path, env=env)
    assert said.returncode == 0 and "<style>" in (tmp_path / "o-report.html").read_text(), said.stderr
    assert subprocess.run([tmp_path / "clean/bin/fastdata-prep", "--version"], env=env, check=True).returncode == 0
