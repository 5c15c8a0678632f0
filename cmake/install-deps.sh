#!/bin/sh
# Installs what zero's tests, examples, benchmarks and checks need, on Debian and Ubuntu. Running it
# again costs nothing. The library itself needs a C++20 compiler only.
set -eu

packages="g++ cmake ninja-build python3 python3-pip doctest-dev libbenchmark-dev libeigen3-dev
libcli11-dev nlohmann-json3-dev libxxhash-dev libtorch-dev libopenmpi-dev openmpi-bin libmpich-dev mpich doxygen
clang libclang-rt-dev clang-format clang-tidy g++-aarch64-linux-gnu qemu-user ccache git make pkg-config iproute2"

if ! command -v apt-get >/dev/null 2>&1; then
  cat >&2 <<'TEXT'
zero: this script knows apt-get only. Please install: a C++20 compiler (GCC 12 is the one
tested), CMake 3.25 or newer, Ninja, Python 3, doctest, Google Benchmark, Eigen 3, CLI11,
nlohmann-json, xxHash; for processes Open MPI or MPICH; and for the checks doxygen, clang-format 14,
clang-tidy, ccache, git.
  Fedora:  dnf install gcc-c++ cmake ninja-build python3 doctest-devel google-benchmark-devel \
             eigen3-devel cli11-devel json-devel xxhash-devel openmpi-devel doxygen clang-tools-extra ccache git
  Arch:    pacman -S --needed gcc cmake ninja python doctest benchmark eigen cli11 nlohmann-json \
             xxhash openmpi doxygen clang ccache git
  macOS:   brew install cmake ninja python doctest google-benchmark eigen cli11 nlohmann-json \
             xxhash open-mpi doxygen clang-format ccache git
TEXT
  exit 1
fi

missing=""
for package in $packages; do
  # A package that was removed but not purged is known to dpkg, too; only its status tells.
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) || status=absent
  [ "$status" = installed ] || missing="$missing $package"
done
if [ -z "$missing" ]; then
  echo "zero: everything is installed"
  exit 0
fi

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null 2>&1; then
    sudo "$@"
  else
    echo "zero: not root and no sudo; please install:$missing" >&2
    exit 1
  fi
}

echo "zero: installing$missing"
as_root apt-get update -q
# shellcheck disable=SC2086  # the list is meant to be split
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
