#!/usr/bin/env bash
# Installs the programs that pip and npm can't install, for one tier: system_packages.sh book|grade|test.
#
# It says what it installs and why, and asks nothing: it runs apt only as root or where sudo needs no password. Elsewhere
# it prints one line that says what is missing. It never fails: every program has one use, and the rest does without.
# What it says goes to stdout, what apt says to stderr.
set -euo pipefail
tier=$1

packages=() uses=()

# need PACKAGES USE PROGRAM...: list the packages, unless all their programs are on this machine.
need() {
  local names=$1 use=$2 program
  shift 2
  for program; do
    command -v "$program" >/dev/null || { packages+=("$names") uses+=("$use"); return 0; }
  done
}

# need_one PACKAGES USE PROGRAM...: list the packages, unless one of the programs is on this machine.
need_one() {
  local names=$1 use=$2
  shift 2
  command -v "$@" >/dev/null || { packages+=("$names") uses+=("$use"); }
}

linux() { [ "$(uname)" = Linux ]; }
libseccomp() { "$(command -v ldconfig || echo /sbin/ldconfig)" -p 2>/dev/null | grep -q libseccomp.so.2; }

# The chapters run without iproute2: they then show the measurements that they keep, or say that they leave one out.
if linux; then
  need iproute2 "chapters measure on emulated network lines" ip tc
fi
if linux && [ "$tier" != book ]; then
  need bubblewrap "the sandbox that student code runs in" bwrap
  libseccomp || { packages+=(libseccomp2) uses+=("the sandbox's filter of system calls"); }
fi
if [ "$tier" = test ]; then
  need_one chromium "tests open every page in it" chromium chromium-browser google-chrome
fi
if linux && [ "$tier" = test ]; then
  need "slurmctld slurmd slurm-client" "tests run jobs/slurm.sbatch on a Slurm of their own" slurmctld slurmd sbatch
  need_one postgresql "tests keep a gradebook on a server of their own" initdb /usr/lib/postgresql/*/bin/initdb
fi
[ ${#packages[@]} -gt 0 ] || exit 0

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo -n)
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "$@" >&2; }

# missing HOW: print the one line that says what is missing, what for, and how to install it.
missing() {
  local listed
  listed=$(for each in "${!packages[@]}"; do printf '; %s (%s)' "${packages[each]}" "${uses[each]}"; done)
  echo "env: going on without ${listed:2}. $1"
}

if ! command -v apt-get >/dev/null; then
  missing "Install them with this machine's package manager."
  exit 0
fi
if ! "${as_root[@]}" true 2>/dev/null; then
  missing "To install them: sudo apt-get install ${packages[*]}"
  exit 0
fi

# Debian starts a service as soon as it is installed, and again with the machine; and its PostgreSQL makes a database.
# The tests start servers of their own, so nothing may start here. These files say so to apt, and go again at the end.
policy=/usr/sbin/policy-rc.d
no_database=/etc/postgresql-common/createcluster.d/collectives.conf
written=()

# write FILE LINE...: write a file as root, unless it exists, and remember to remove it.
write() {
  [ ! -e "$1" ] || return 0
  written+=("$1")
  printf '%s\n' "${@:2}" | "${as_root[@]}" install -D -m 755 /dev/stdin "$1"
}

# Remove what `write` wrote, and its folders unless a package has them now.
clean_up() {
  local each
  for each in "${written[@]}"; do
    "${as_root[@]}" rm -f "$each"
    dpkg -S "${each%/*}" >/dev/null 2>&1 ||
      "${as_root[@]}" rmdir -p --ignore-fail-on-non-empty "${each%/*}" 2>/dev/null || true
  done
}
trap clean_up EXIT

if [ "$tier" = test ]; then
  write "$policy" "#!/bin/sh" "exit 101"
  write "$no_database" "create_main_cluster = false"
fi

apt update -qq || true  # without a network, apt may still hold what is asked for
for each in "${!packages[@]}"; do
  echo "env: installing ${packages[each]} by apt: ${uses[each]}"
  # One by one: a package that this system's archive lacks doesn't keep the others out.
  # shellcheck disable=SC2086  # an entry may name several packages
  if apt install -y -qq --no-install-recommends ${packages[each]}; then
    unset "packages[each]"
  fi
done
if [ "$tier" = test ] && command -v systemctl >/dev/null; then
  "${as_root[@]}" systemctl disable slurmctld slurmd munge >&2 2>&1 || true  # else they start with the machine
fi
[ ${#packages[@]} -eq 0 ] || missing "apt could not install them: see _build/env.log."
