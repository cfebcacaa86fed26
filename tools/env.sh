#!/usr/bin/env bash
# Sets up everything the course needs: system packages, .venv, node_modules. `make env` runs it when its inputs change.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p _build
PYTHON=${PYTHON:-python3}
log=_build/env.log
: >"$log"

# step NAME ADVICE COMMAND...: run quietly; on failure show the end of the log and what to do.
step() {
  local name=$1 advice=$2
  shift 2
  echo "env: $name"
  if ! "$@" >>"$log" 2>&1; then
    tail -n 25 "$log" >&2
    echo "env: FAILED at: $name. $advice (whole log: $log)" >&2
    exit 1
  fi
}

recent_python() { "$PYTHON" -c 'import sys; assert sys.version_info >= (3, 11), sys.version'; }
virtual_environment() { [ -x .venv/bin/python ] || "$PYTHON" -m venv .venv; }
# SkyPilot's own code, whose schemas the tests read, without the hundred packages that it needs to rent a machine.
skypilot_schemas() {
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .venv/skypilot \
    "$(grep -o 'skypilot==[0-9.]*' pyproject.toml)"
}

# A newer pip than Python's own is twice as fast with so many packages; without it the next step takes longer.
newer_pip() { .venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip || true; }
# What pip would do one file after another. Some packages hold files that are no Python of this version.
compiled() { .venv/bin/python -m compileall -qq -j 0 .venv/lib || true; }

step "system packages (chromium, bubblewrap, node, npm, iproute2)" "Install them by hand, then run make again." \
  bash tools/system_packages.sh
step "Python 3.11 or newer" "Name one: make PYTHON=/path/to/python3.11 env." recent_python
step "virtual environment .venv" "On Debian or Ubuntu: apt-get install python3-venv." virtual_environment
step "pip" "" newer_pip
step "Python packages (1.6 GB, a minute or two the first time)" "Check the network and the disk, then run make again." \
  .venv/bin/python -m pip install --quiet --no-compile --disable-pip-version-check \
  -e ".[course,dask,cluster,jobs,classroom,postgres]"
step "compiling them" "" compiled &
compiling=$!
step "KaTeX, PurgeCSS, the audits and the classroom's proxy, by npm (200 MB)" "Check the network, then run make again." \
  npm ci --no-audit --no-fund --loglevel=error
wait "$compiling"
step "SkyPilot's schemas (4 MB)" "Check the network, then run make again." skypilot_schemas
echo "env: ready"
