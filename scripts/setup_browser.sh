#!/usr/bin/env bash
# Installs what tests/browser needs beside the other tests: Debian's Chromium, and for the given Python
# Playwright and axe-core (from npm, into the environment's directory `browser`). Does nothing when all
# are there. Needs root or sudo for Chromium and npm.
set -euo pipefail
PYTHON=$1

missing=()
command -v chromium >/dev/null || missing+=(chromium fonts-dejavu-core)
command -v npm >/dev/null || missing+=(npm)
if [ "${#missing[@]}" -gt 0 ]; then
    as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    "${as_root[@]}" apt-get -o Acquire::Retries=5 update
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -o Acquire::Retries=5 install --yes --no-install-recommends "${missing[@]}"
fi
"$PYTHON" -c 'import playwright' 2>/dev/null || "$PYTHON" -m pip install 'playwright>=1.49,<2'
directory=$("$PYTHON" -c 'import sys; print(sys.prefix)')/browser
[ -f "$directory/node_modules/axe-core/axe.min.js" ] ||
    npm install --no-audit --no-fund --prefix "$directory" 'axe-core@^4.10'
