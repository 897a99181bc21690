"""A virtual environment for each peer, made when it is first needed, from requirements/NAME.txt.

requirements/NAME.nodeps.txt, if there is one, is installed without its dependencies. What peers need torch for, its CPU build does;
where the package index at hand has none, PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu spares gigabytes.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from process import without_paths

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements"
HOME = HERE / ".venvs"
TIMEOUT_S = 1800


def python_of(name: str | None) -> Path:
    """The Python of a peer's environment, which is made if it is absent or made from other requirements; None: the one that runs.

    Raises:
        RuntimeError: it can't be made; the message is the last that pip says.
    """
    if name is None:
        return Path(sys.executable)
    folder, files = HOME / name, [REQUIREMENTS / "constraints.txt", REQUIREMENTS / f"{name}.txt"]
    python, made, extra = folder / "bin/python", folder / ".made", REQUIREMENTS / f"{name}.nodeps.txt"
    wanted = hashlib.sha256(b"".join(file.read_bytes() for file in [*files, extra] if file.exists())).hexdigest()
    if made.exists() and made.read_text() == wanted:
        return python
    print(f"making the environment of {name}", flush=True)
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    _run([*pip, "-c", str(files[0]), "-r", str(files[1])])
    if extra.exists():
        _run([*pip, "--no-deps", "-r", str(extra)])
    made.write_text(wanted)
    return python


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(without_paths(str(error))) from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith(("[notice]", "WARNING"))]
        raise RuntimeError(without_paths(" / ".join(line.strip() for line in lines[-3:])) or f"exit code {done.returncode}")
