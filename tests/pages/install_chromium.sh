#!/usr/bin/env bash
# Installs Debian's Chromium for tests/pages, if it is missing and this user may. Else those tests are skipped.
set -euo pipefail
if command -v chromium >/dev/null; then exit 0; fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "Chromium is not installed, and only root can install it with apt-get: tests/pages is skipped"
    exit 0
fi
apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null ||
    echo "Chromium could not be installed: tests/pages is skipped"
