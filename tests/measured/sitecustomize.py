"""Let processes that are killed write what of them was measured. `make coverage` has this folder on PYTHONPATH.

Those that prepare are ended with SIGKILL when their work is done, of which coverage hears nothing.
"""

import subprocess

_kill = subprocess.Popen.kill


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Send SIGTERM, on which coverage writes; and SIGKILL after 10 s."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        _kill(process)


subprocess.Popen.kill = _end  # type: ignore[method-assign]
