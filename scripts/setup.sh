#!/usr/bin/env bash
# Does all the set-up of a checkout: system packages, .venv, frameworks, edl, Horovod.
# With --demo only what `make demo` needs: PyTorch, and Horovod for it.
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
DEMO_STAMP=$VENV/.edl-setup-demo # the same, for --demo
LOG=.setup.log # what apt-get and pip print
MODE=${1:-}
PERIOD_S=20 # without a terminal: how often a line is written while nothing else changes

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
    { [ "$(cat "$STAMP" 2>/dev/null)" = "$1" ] ||
        { [ "$MODE" = --demo ] && [ "$(cat "$DEMO_STAMP" 2>/dev/null)" = "$1" ]; }; } &&
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

# What only tests run: hosts with ssh, and the recipes for Slurm, systemd and Prometheus.
missing_test_packages() {
    local PATH=$PATH:/usr/sbin:/sbin
    command -v openssl >/dev/null || echo openssl
    command -v ssh >/dev/null || echo openssh-client
    command -v sshd >/dev/null || echo openssh-server
    command -v systemd-analyze >/dev/null || echo systemd
    command -v sbatch >/dev/null || echo slurm-client
    command -v slurmctld >/dev/null || echo slurmctld # it starts nothing without a configuration
    command -v slurmd >/dev/null || echo slurmd
    command -v promtool >/dev/null || echo prometheus # see stop_service
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
    case " $* " in
        *" prometheus "*) stop_service prometheus "${as_root[@]}" ;;
    esac
}

# Debian starts the service of a package that it installs, and tests start a server of their own.
stop_service() {
    local name=$1
    shift
    command -v systemctl >/dev/null || return 0
    "$@" systemctl stop "$name" 2>/dev/null || true # no systemd runs in a container
    "$@" systemctl disable "$name" 2>/dev/null || true
}

# --- in the background: one line that goes on, in place of what apt-get and pip print ---------

# Runs a command whose output goes to the log. Ctrl-C ends it, as it ends the rest.
in_background() {
    (trap - INT && "$@") >>"$LOG" 2>&1 &
}

# Waits for processes in the background: pairs of a pid and what it installs.
await() {
    local began=$SECONDS told=$SECONDS names code=0
    local -a left=("$@") still
    while [ "${#left[@]}" -gt 0 ]; do
        still=() names=""
        set -- "${left[@]}"
        while [ $# -gt 0 ]; do
            if kill -0 "$1" 2>/dev/null; then
                still+=("$1" "$2")
                names+="${names:+ and }$2"
            else
                wait "$1" || code=1
            fi
            shift 2
        done
        left=("${still[@]}")
        if [ -t 1 ]; then
            printf '\r\033[K%s' "${names:+installing $names: $((SECONDS - began)) s}"
        elif [ -n "$names" ] && [ $((SECONDS - told)) -ge $PERIOD_S ]; then
            told=$SECONDS
            echo "installing $names: $((SECONDS - began)) s"
        fi
        [ -z "$names" ] || sleep 0.2
    done
    if [ "$code" -ne 0 ]; then
        tail -n 15 "$LOG" >&2
        die "the lines above say why; all of them are in $LOG"
    fi
    echo "done in $((SECONDS - began)) s"
}

# --- the steps -------------------------------------------------------------------------------

make_environment() {
    if ! "$VENV/bin/python" -c 'import pip' 2>/dev/null; then
        "$1" -m venv --clear "$VENV" || die "$1 cannot make a virtual environment"
    fi
    rm -f "$STAMP" "$DEMO_STAMP"
}

install_python_packages() {
    local -a what=("$TORCH" "$TENSORFLOW" "$TENSORBOARD" --editable '.[api,dev,parquet]')
    [ "$MODE" != --demo ] || what=("$TORCH" --editable .)
    "$VENV/bin/python" -m pip install --retries 10 "${what[@]}" ||
        die "pip could not install the Python packages. Try again if it was a time-out"
}

main() {
    local now python missing frameworks="PyTorch and TensorFlow"
    local -a jobs=()
    now=$(fingerprint)
    is_done "$now" && return
    [ "$MODE" != --demo ] || frameworks=PyTorch

    python=$(find_python) ||
        die "no Python 3.11 to 3.13 found; install one (Debian 12: apt-get install python3) or set PYTHON"

    step "1/2 system packages, and in $VENV ($("$python" -V)) $frameworks"
    : >"$LOG"
    mapfile -t missing < <(missing_packages "$python")
    if [ "${#missing[@]}" -gt 0 ]; then
        echo "apt-get installs ${missing[*]}"
        [ "$(id -u)" -eq 0 ] || ! command -v sudo >/dev/null || sudo --validate # asks now, not later
        in_background install_packages "${missing[@]}"
        jobs=("$!" "system packages")
        if [[ " ${missing[*]} " == *" python3-venv "* ]]; then # the next step needs it
            await "${jobs[@]}"
            jobs=()
        fi
    fi
    make_environment "$python"
    in_background install_python_packages
    await "${jobs[@]}" "$!" "Python packages"

    step "2/2 Horovod (from the cache, or a minute or two of compiling)"
    "$VENV/bin/edl" build-horovod || die "Horovod could not be built; see the line above"

    if [ "$MODE" = --demo ]; then
        echo "$now" >"$DEMO_STAMP"
    else
        echo "$now" >"$STAMP"
    fi
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
[ "$MODE" != --tests ] || for_tests
