#!/bin/sh
# Runs the README's commands in a bare system of another Debian release, as a stranger would. What the
# last commit has is put there. Its packages are installed, both commands of the README run, then what
# needs MPI. Nothing of this machine is visible there, CUDA least of all. Prints a table.
#
#   sh cmake/other_system.sh trixie            # or sid, or bookworm
#   sh cmake/other_system.sh trixie STEP...    # some of: packages demo test full openmpi mpich clang macros
#
# Needs root, debootstrap and git, about 12 GB, and an hour on two cores. The system stays in
# build/systems (ZERO_SYSTEMS names another folder), so that a second run needs no packages; delete
# it to begin anew. The exit status is 0 if all steps passed.
set -eu
cd "$(dirname "$0")/.."

usage() { sed -n '2,/^set -eu/s/^#$//p; 2,/^set -eu/s/^# //p' "$0"; }
case ${1:-} in
-h | --help)
  usage
  exit 0
  ;;
'' | -*)
  usage >&2
  exit 2
  ;;
esac
suite=$1
shift
steps=${*:-packages demo test full openmpi mpich clang macros}

for tool in debootstrap git unshare chroot; do
  command -v "$tool" >/dev/null 2>&1 || {
    echo "zero: $tool is missing; on Debian: apt-get install debootstrap git util-linux" >&2
    exit 1
  }
done
[ "$(id -u)" -eq 0 ] || {
  echo "zero: a system is made and entered as root" >&2
  exit 1
}

systems=${ZERO_SYSTEMS:-build/systems}
mkdir -p "$systems"
system=$(cd "$systems" && pwd)/$suite
logs=$system.logs
mkdir -p "$logs"
if [ ! -e "$system/etc/debian_version" ]; then
  echo "zero: making a bare $suite in $system"
  debootstrap --variant=minbase "$suite" "$system" >"$logs/debootstrap" 2>&1 || {
    tail "$logs/debootstrap" >&2
    exit 1
  }
  # A mirror may keep a release longer than the release says that it is valid.
  echo 'Acquire::Check-Valid-Until "false";' >"$system/etc/apt/apt.conf.d/99zero"
fi
# Anew each time, as a stranger has it; nothing of an earlier commit stays.
rm -rf "$system/root/zero"
mkdir -p "$system/root/zero"
git -c safe.directory='*' archive HEAD | tar -x -C "$system/root/zero"
cp /etc/resolv.conf "$system/etc/resolv.conf"

# One command in the system, with a process table and mounts of its own.
inside() {
  unshare --mount --pid --fork sh -eu -c '
    root=$1
    shift
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    exec chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 TERM=dumb \
      PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      sh -c "cd /root/zero && $*"' inside "$system" "$@"
}

command_of() {
  case $1 in
  packages) echo "sh cmake/install-deps.sh ci" ;;
  demo | test | full | clang) echo "cmake --workflow --preset $1" ;;
  openmpi | mpich) echo "cmake --workflow --preset mpi-$1" ;;
  macros) echo "python3 cmake/check_target_macros.py g++ && python3 cmake/check_target_macros.py clang++" ;;
  *)
    echo "zero: no step '$1'" >&2
    exit 2
    ;;
  esac
}

rows= failed=0
for step in $steps; do
  command=$(command_of "$step")
  echo "zero: $suite: $command (log: $logs/$step)"
  began=$(date +%s)
  verdict=passed
  inside "$command" >"$logs/$step" 2>&1 </dev/null || verdict=FAILED failed=1
  took=$(($(date +%s) - began))
  said=$(sed -n 's/^\([0-9]*% tests passed.*\)/\1/p' "$logs/$step" | tail -1)
  rows="$rows| \`$command\` | $verdict | $took s | ${said:--} |
"
done

version() { inside "dpkg-query -W -f='\${Version}' $1 2>/dev/null || echo none"; }
printf '\n%s, %s\n\n' "$suite" "$(date +%F)"
printf '| package | version |\n|---|---|\n'
for package in g++ clang cmake libc6 libtorch-dev libopenmpi-dev libmpich-dev libxxhash-dev \
  doctest-dev libeigen3-dev libbenchmark-dev; do
  printf '| %s | %s |\n' "$package" "$(version "$package")"
done
printf '\n| command | result | time | tests |\n|---|---|---|---|\n%s' "$rows"
for step in $steps; do
  # The lines in which CTest names what failed, and how.
  sed -n "s/^\t *[0-9]* - /$step: /p" "$logs/$step"
done
exit "$failed"
