#!/usr/bin/env bash
# Installs azurite with npm, into build/azurite, if it is missing. The tests on it are skipped where it cannot be installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if ! command -v azurite-blob >/dev/null && [ ! -x build/azurite/node_modules/.bin/azurite-blob ]; then
    { command -v npm >/dev/null && npm install --silent --no-audit --no-fund --prefix build/azurite azurite@3.37.0 >/dev/null; } ||
        echo "azurite could not be installed with npm: the tests on it are skipped"
fi
