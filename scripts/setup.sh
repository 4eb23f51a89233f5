#!/usr/bin/env bash
# Does all the set-up of a checkout: system packages, .venv, frameworks, edl, Horovod.
# With --tests also the system packages that only tests need.
# A second call ends at once; it does its work again when a file that it depends on has changed.
# Needs: Debian (or the tools it looks for), Python 3.11 to 3.13, root or sudo, and pip's index.
set -euo pipefail
cd "$(dirname "$0")/.."

TORCH="torch==2.13.0"
TENSORFLOW="tensorflow-cpu==2.21.0"
TENSORBOARD="tensorboard==2.21.0" # TensorFlow does not bring it any more
JAR=/usr/share/java/zookeeper.jar # of Debian's package
VENV=.venv
STAMP=$VENV/.edl-setup # holds the fingerprint of what it was set up from

step() { printf '\n==> %s\n' "$*"; }
die() {
    printf 'set-up failed: %s\n' "$*" >&2
    exit 1
}

fingerprint() {
    cat setup.py scripts/setup.sh edl/install/*.py edl/install/patches/*.patch | sha256sum | cut -d' ' -f1
}

# Whether everything is there already: quick signs, so that a second call starts at once.
is_done() {
    [ "$(cat "$STAMP" 2>/dev/null)" = "$1" ] &&
        [ -e "$JAR" ] && command -v java >/dev/null &&
        compgen -G "$VENV/lib/python3.*/site-packages/horovod/edl_edits.json" >/dev/null &&
        "$VENV/bin/python" -c '' 2>/dev/null
}

# --- what the system lacks, as names of Debian's packages ------------------------------------

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.11 python3.12 python3.13; do
        if [ -n "$candidate" ] && "$candidate" -c \
            'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

missing_packages() {
    local python=$1
    command -v java >/dev/null || echo openjdk-17-jre-headless
    [ -e "$JAR" ] || echo zookeeper
    command -v cmake >/dev/null || echo cmake
    command -v g++ >/dev/null || echo g++
    command -v make >/dev/null || echo make
    command -v patch >/dev/null || echo patch
    command -v ip >/dev/null || [ -x /usr/sbin/ip ] || [ -x /sbin/ip ] || echo iproute2
    "$python" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
    "$python" -c 'import pathlib, sys, sysconfig
sys.exit(not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").is_file())' || echo python3-dev
}

# What only tests run: hosts with ssh, and the recipes for Slurm and systemd.
missing_test_packages() {
    local PATH=$PATH:/usr/sbin:/sbin
    command -v openssl >/dev/null || echo openssl
    command -v ssh >/dev/null || echo openssh-client
    command -v sshd >/dev/null || echo openssh-server
    command -v systemd-analyze >/dev/null || echo systemd
    command -v sbatch >/dev/null || echo slurm-client
    command -v slurmctld >/dev/null || echo slurmctld # it starts nothing without a configuration
    command -v slurmd >/dev/null || echo slurmd
}

install_packages() {
    local as_root=()
    command -v apt-get >/dev/null ||
        die "there is no apt-get here; install what these Debian packages hold, then run this again: $*"
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null ||
            die "not root and no sudo; as root run: apt-get install $*"
        as_root=(sudo)
    fi
    "${as_root[@]}" apt-get -o Acquire::Retries=5 update ||
        die "apt-get update failed; check the network and /etc/apt, or install these yourself: $*"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -o Acquire::Retries=5 install --yes --no-install-recommends "$@" ||
        die "apt-get could not install: $*"
}

# --- the four steps --------------------------------------------------------------------------

main() {
    local now python missing
    now=$(fingerprint)
    is_done "$now" && return

    python=$(find_python) ||
        die "no Python 3.11 to 3.13 found; install one (Debian 12: apt-get install python3) or set PYTHON"

    step "1/4 system packages"
    mapfile -t missing < <(missing_packages "$python")
    if [ "${#missing[@]}" -gt 0 ]; then
        echo "installing ${missing[*]}"
        install_packages "${missing[@]}"
    else
        echo "all there"
    fi

    step "2/4 virtual environment $VENV ($("$python" -V))"
    if ! "$VENV/bin/python" -c 'import pip' 2>/dev/null; then
        "$python" -m venv --clear "$VENV" || die "$python cannot make a virtual environment"
    fi
    rm -f "$STAMP"

    step "3/4 Python packages (PyTorch, TensorFlow, edl; a few minutes the first time)"
    "$VENV/bin/python" -m pip install --retries 10 "$TORCH" "$TENSORFLOW" "$TENSORBOARD" --editable '.[dev,parquet,simulator]' ||
        die "pip could not install the Python packages; its last lines say which. Try again if it was a time-out"

    step "4/4 Horovod (from the cache, or about four minutes of compiling)"
    "$VENV/bin/edl" build-horovod || die "Horovod could not be built; see the line above"

    echo "$now" >"$STAMP"
    step "set-up done"
}

for_tests() {
    local missing
    mapfile -t missing < <(missing_test_packages)
    [ "${#missing[@]}" -eq 0 ] && return
    step "system packages that tests need: ${missing[*]}"
    install_packages "${missing[@]}"
}

# One set-up at a time in this checkout; the lock is on this file and ends with the process.
exec 9<scripts/setup.sh
if command -v flock >/dev/null && ! flock --nonblock 9; then
    echo "another set-up runs in this checkout; waiting for it"
    flock 9
fi
main
[ "${1:-}" != --tests ] || for_tests
