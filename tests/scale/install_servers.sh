#!/usr/bin/env bash
# Installs what the tests of clusters and object storage need beside Python's packages, if it is missing: Debian's Slurm and munge
# (as root), and azurite (with npm, into build/azurite). The tests of what cannot be installed are skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if ! command -v azurite-blob >/dev/null && [ ! -x build/azurite/node_modules/.bin/azurite-blob ]; then
    { command -v npm >/dev/null && npm install --silent --no-audit --no-fund --prefix build/azurite azurite@3.37.0 >/dev/null; } ||
        echo "azurite could not be installed with npm: the tests on it are skipped"
fi
if command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null; then exit 0; fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "Slurm is not installed, and only root can install it with apt-get: tests/scale/test_slurm.py is skipped"
    exit 0
fi
apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends slurm-wlm munge >/dev/null ||
    echo "Slurm could not be installed: tests/scale/test_slurm.py is skipped"
