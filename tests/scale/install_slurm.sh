#!/usr/bin/env bash
# Installs Debian's Slurm and munge for tests/scale/test_slurm.py, if they are missing and this user may. Else those tests are skipped.
set -euo pipefail
if command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null; then exit 0; fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "Slurm is not installed, and only root can install it with apt-get: tests/scale/test_slurm.py is skipped"
    exit 0
fi
apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends slurm-wlm munge >/dev/null ||
    echo "Slurm could not be installed: tests/scale/test_slurm.py is skipped"
