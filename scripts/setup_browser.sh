#!/usr/bin/env bash
# Installs what tests/browser needs beside the other tests: Debian's Chromium, and Playwright for the
# given Python. Does nothing when both are there. Needs root or sudo for Chromium.
set -euo pipefail
PYTHON=$1

if ! command -v chromium >/dev/null; then
    as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    "${as_root[@]}" apt-get -o Acquire::Retries=5 update
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -o Acquire::Retries=5 install --yes --no-install-recommends chromium fonts-dejavu-core
fi
"$PYTHON" -c 'import playwright' 2>/dev/null || "$PYTHON" -m pip install 'playwright>=1.49,<2'
