#!/usr/bin/env bash
# Installs the programs that pip and npm cannot: each only where its command is missing.
set -euo pipefail

missing=()
command -v chromium >/dev/null || command -v chromium-browser >/dev/null ||
  command -v google-chrome >/dev/null || missing+=(chromium)   # opens every page in the tests
command -v bwrap >/dev/null || missing+=(bubblewrap)           # the autograder's sandbox
if [ "$(uname)" = Linux ]; then
  ldconfig=$(command -v ldconfig || echo /sbin/ldconfig)       # a user's PATH may lack it
  "$ldconfig" -p | grep libseccomp.so.2 >/dev/null || missing+=(libseccomp2)   # its filter of system calls
fi
command -v node >/dev/null || missing+=(nodejs)                # renders formulas
command -v npm >/dev/null || missing+=(npm)
if [ "$(uname)" = Linux ]; then                                # elsewhere there are no network namespaces
  command -v ip >/dev/null && command -v tc >/dev/null || missing+=(iproute2)   # joins emulated nodes by shaped lines
fi

optional=()                                                    # without them a test says that it is blocked
if [ "$(uname)" = Linux ]; then
  command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v sbatch >/dev/null ||
    optional+=(slurmctld slurmd slurm-client)                  # a Slurm of this machine alone runs jobs/slurm.sbatch
  command -v initdb >/dev/null || compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null ||
    optional+=(postgresql)                                     # a server of the tests' own holds a gradebook
fi

[ $((${#missing[@]} + ${#optional[@]})) -gt 0 ] || exit 0

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo -n)
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "$@"; }
if ! command -v apt-get >/dev/null || ! "${as_root[@]}" true 2>/dev/null; then
  [ ${#missing[@]} -gt 0 ] || exit 0
  echo "Missing: ${missing[*]}. Install them with this machine's package manager and run make again," >&2
  echo "on Debian or Ubuntu: sudo apt-get install ${missing[*]}" >&2
  exit 1
fi
echo "env: installing" "${missing[@]}" "${optional[@]}"
apt update -qq || [ ${#missing[@]} -eq 0 ]
[ ${#missing[@]} -eq 0 ] || apt install -y -qq --no-install-recommends "${missing[@]}"
[ ${#optional[@]} -eq 0 ] || apt install -y -qq --no-install-recommends "${optional[@]}" ||
  echo "env: going on without ${optional[*]}"
