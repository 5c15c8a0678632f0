#!/bin/sh
# Installs what a command of the README needs, on Debian and Ubuntu, from the system's packages, as
# root or by sudo. Running it again costs nothing. The library itself needs a C++20 compiler only.
set -eu

usage() {
  cat <<'TEXT'
usage: sh cmake/install-deps.sh demo|test|install|ci [--print]

  demo     what trains the GPT: a compiler, CMake, Ninja, Eigen, CLI11, nlohmann-json
  test     what the tests of the library need: those three, Python, doctest, xxHash, nlohmann-json
  install  what building and installing needs: a compiler, CMake, Ninja, CLI11, nlohmann-json, xxHash
  ci       what every test and check needs: all these, Google Benchmark, two MPI libraries, LibTorch,
           dlib, other compilers, a cross compiler, an emulator, SPIN
  --print  prints the packages and installs nothing
TEXT
}

demo="g++ cmake ninja-build libeigen3-dev libcli11-dev nlohmann-json3-dev"
test="g++ cmake ninja-build python3 doctest-dev libxxhash-dev nlohmann-json3-dev"
install="g++ cmake ninja-build libcli11-dev nlohmann-json3-dev libxxhash-dev"
ci="$demo $test libbenchmark-dev make pkg-config python3-pip libdlib-dev libtorch-dev libopenmpi-dev openmpi-bin libmpich-dev mpich doxygen clang
libclang-rt-dev clang-format g++-aarch64-linux-gnu qemu-user ccache git iproute2 spin"

case "${1-}" in
  demo) packages=$demo ;;
  test) packages=$test ;;
  install) packages=$install ;;
  ci) packages=$ci ;;
  -h | --help) usage && exit 0 ;;
  *) usage >&2 && exit 2 ;;
esac
case "${2-}" in
  "") ;;
  --print)
    # shellcheck disable=SC2086  # the list is meant to be split
    printf '%s\n' $packages
    exit 0
    ;;
  *) usage >&2 && exit 2 ;;
esac

if ! command -v apt-get >/dev/null 2>&1; then
  cat >&2 <<'TEXT'
zero: this script knows apt-get only. Please install a C++20 compiler (GCC 12 is the one that CI
has), CMake 3.25 or newer and Ninja, and for the demo Eigen 3, CLI11 and nlohmann-json; for the
tests also doctest, Python 3, xxHash and Google Benchmark.
  Fedora:  dnf install gcc-c++ cmake ninja-build eigen3-devel cli11-devel json-devel \
             doctest-devel python3 xxhash-devel google-benchmark-devel
  Arch:    pacman -S --needed gcc cmake ninja eigen cli11 nlohmann-json doctest python xxhash benchmark
  macOS:   brew install cmake ninja eigen cli11 nlohmann-json doctest python xxhash google-benchmark
TEXT
  exit 1
fi

# Older releases fail later, with errors that name neither the release nor what is missing.
if [ -r /etc/os-release ]; then
  release=$(. /etc/os-release && echo "${ID-} ${VERSION_ID-}")
  case $release in
    "debian 9" | "debian 10" | "debian 11" | "ubuntu 1"* | "ubuntu 20."* | "ubuntu 22."* | "ubuntu 23."*)
      echo "zero: needs Debian 12, Ubuntu 24.04 or newer, for GCC 12 and CMake 3.25; this is $release" >&2
      exit 1
      ;;
  esac
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
