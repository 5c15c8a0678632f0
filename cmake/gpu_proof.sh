#!/bin/sh
# Builds and runs what only GPUs can show of zero, the most important parts first. Each part has a time limit,
# and one that fails stops no other.
#
#   sh cmake/gpu_proof.sh              # one GPU, in ten minutes
#   sh cmake/gpu_proof.sh --gpus N     # NCCL over N GPUs, 1 to 8, in twenty minutes
#   sh cmake/gpu_proof.sh --emulated   # the same parts anywhere, on the two emulated devices of the tests;
#                                      # can be combined with --gpus 2
#   sh cmake/gpu_proof.sh --carry      # where packages are: puts what has to travel into carried/ (60 MB at most)
#
# It ends in a page that can be pasted into a report, build/gpu_proof.txt, and the same for programs,
# build/gpu_proof.json: the machine, each part with its result, the figures that were measured, and what was
# not shown and why. What the parts printed is in build/gpu_proof. The exit status is 0 if no part failed, 1 if
# one failed or nothing can run here, and 2 for a wrong command line.
#
# The last part for one GPU, slow_rows, measures what was slow on the first GPU that there was, beside its goals,
# and fails if one of them is missed.
#
# With --gpus, the parts are:
#   operations, bits, captured_step, other_tests   NCCL's tests, with a thread for each GPU: every collective;
#                the host's bits under all stages; a step captured on each GPU; lost ranks and all else
#   processes    the most important of these tests, with a process for each GPU
#   killed_rank  one process is killed amid training; the others are told, and have what they can save
#   ordered, native, windows   collectives beside NCCL's own: with sums in rank order; with NCCL's sums, through
#                the library; the same with memory in registered windows
#   steps        a step under each stage beside NCCL's own calls, in plain memory and in registered windows
#   gpt          train_gpt on GPUs beside the host's: losses, bits under all stages, memory, tokens/s and MFU
# If there is one GPU, two processes share it. This shows what is right and not how fast it is, so that
# collectives and steps are not measured.
#
# Needs, where the GPUs are: nvcc of CUDA 12.9 or newer, CMake 3.25, Ninja, Python 3, a C++20 compiler, doctest,
# Google Benchmark and CLI11, for the trainer cuBLAS, Eigen and nlohmann-json, and with --gpus NCCL 2.27.3 or
# newer. What is no part of CUDA and not NCCL may be in carried/ beside cmake/. No network is needed. If
# CUDA_VISIBLE_DEVICES is set, its first N GPUs are used. ZERO_PROOF_SECONDS is the time in all, and
# ZERO_PROOF_LIMIT the most that a part may take.
set -eu
cd "$(dirname "$0")/.."

refuse() { # STATUS WHY
  echo "zero: $2" >&2
  exit "$1"
}

mode=device
gpus=
command_line="gpu_proof.sh${*:+ $*}"
while [ "$#" -gt 0 ]; do
  case "$1" in
    --emulated) mode=emulated ;;
    --carry) mode=carry ;;
    --gpus)
      gpus=${2:-none}
      [ "$#" -eq 1 ] || shift
      ;;
    --gpus=*) gpus=${1#--gpus=} ;;
    --help)
      sed -n '2,/^set -eu/s/^#$//p; 2,/^set -eu/s/^# //p' "$0"
      exit 0
      ;;
    *) refuse 2 "there is no option $1; --help lists all" ;;
  esac
  shift
done
case "$gpus" in
  "" | [1-8]) ;;
  *) refuse 2 "--gpus needs a number of GPUs from 1 to 8, not '$gpus'" ;;
esac

# Packages for CMake. Their own files may name paths of this machine.
carry() {
  for file in /usr/include/doctest/doctest.h /usr/include/benchmark/benchmark.h /usr/include/CLI/CLI.hpp \
    /usr/include/nlohmann/json.hpp /usr/include/eigen3/Eigen/Core; do
    [ -e "$file" ] || {
      echo "zero: no $file; 'sh cmake/install-deps.sh ci' installs it" >&2
      exit 1
    }
  done
  library=$(find /usr/lib -name libbenchmark.so | head -1)
  rm -rf carried
  for package in doctest CLI11 nlohmann_json Eigen3 benchmark; do mkdir -p "carried/lib/cmake/$package"; done
  mkdir -p carried/include
  cp -r /usr/include/doctest /usr/include/CLI /usr/include/benchmark /usr/include/nlohmann carried/include/
  cp -r /usr/include/eigen3/Eigen carried/include/
  cp "$(readlink -f "$library")" "carried/lib/$(basename "$(readlink "$library")")"
  cat >carried/lib/cmake/doctest/doctestConfig.cmake <<'END'
add_library(doctest::doctest INTERFACE IMPORTED)
target_include_directories(doctest::doctest INTERFACE "${CMAKE_CURRENT_LIST_DIR}/../../../include")
END
  for package in CLI11::CLI11 nlohmann_json::nlohmann_json Eigen3::Eigen; do
    sed "s/doctest::doctest/$package/g" carried/lib/cmake/doctest/doctestConfig.cmake \
      >"carried/lib/cmake/${package%%::*}/${package%%::*}Config.cmake"
  done
  cat >carried/lib/cmake/benchmark/benchmarkConfig.cmake <<'END'
find_package(Threads REQUIRED)
file(GLOB library "${CMAKE_CURRENT_LIST_DIR}/../../libbenchmark.*")
add_library(benchmark::benchmark SHARED IMPORTED)
set_target_properties(benchmark::benchmark PROPERTIES IMPORTED_LOCATION "${library}")
target_include_directories(benchmark::benchmark INTERFACE "${CMAKE_CURRENT_LIST_DIR}/../../../include")
target_link_libraries(benchmark::benchmark INTERFACE Threads::Threads)
END
  du -sh carried
}
if [ "$mode" = carry ]; then
  carry
  exit 0
fi

# What can be known before anything is built.
for program in cmake ninja python3; do
  command -v "$program" >/dev/null 2>&1 || refuse 1 "no $program in the PATH"
done
if [ "$mode" = emulated ]; then
  build=build/full
  preset=full
  visible=0,1
else
  build=build/cuda
  preset=cuda
  command -v nvcc >/dev/null 2>&1 ||
    refuse 1 "no nvcc in the PATH. It comes with CUDA, often in /usr/local/cuda/bin; --emulated does not need it"
  command -v nvidia-smi >/dev/null 2>&1 ||
    refuse 1 "no GPU: there is no nvidia-smi in the PATH, which comes with the driver; --emulated needs none"
  found=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>&1) ||
    refuse 1 "no GPU: nvidia-smi says '$(printf '%s\n' "$found" | head -1)'; --emulated needs none"
  visible=${CUDA_VISIBLE_DEVICES-$(seq -s, 0 "$(($(printf '%s\n' "$found" | wc -l) - 1))")}
fi
there=$(printf '%s\n' "$visible" | tr , '\n' | grep -c . || true)
[ "${gpus:-1}" -le "$there" ] || refuse 1 "GPUs that this needs: ${gpus:-1}; that programs see: $there \
(CUDA_VISIBLE_DEVICES: ${CUDA_VISIBLE_DEVICES-not set})"
visible=$(printf '%s\n' "$visible" | cut -d, -f "1-${gpus:-8}")
[ "$mode" = emulated ] || export CUDA_VISIBLE_DEVICES="$visible"

seconds=${ZERO_PROOF_SECONDS:-$([ -n "$gpus" ] && echo 1200 || echo 600)}
began=$(date +%s)
folder=build/gpu_proof
rm -rf "$folder"
mkdir -p "$folder"
: >"$folder/rows"

fact() { printf '%s\t%s\n' "$1" "$2" >>"$folder/facts"; } # WHAT VALUE

row() { # NAME RESULT SECONDS LIMIT SAID
  said=$(printf '%s' "${5:--}" | tr '\t' ' ' | cut -c1-300)
  printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" "$said" >>"$folder/rows"
  case "$2" in
    passed) echo "zero: $1: passed in $3 s" >&2 ;;
    *) echo "zero: $1: $2: $said" >&2 ;;
  esac
}

skip() { # NAME REASON
  result=skipped
  row "$1" "$result" 0 0 "$2"
}

# The page, whatever happened; 1 if a part failed.
finish() {
  fact seconds "$(($(date +%s) - began)) of $seconds"
  status=0
  python3 cmake/gpu_proof_page.py "$folder" || status=$?
  cat "$folder.txt"
  return "$status"
}

running=
interrupted() {
  trap - INT TERM HUP
  [ -z "$running" ] || kill "$running" 2>/dev/null || true
  row "${name:-start}" failed 0 0 "interrupted"
  finish || true
  exit 130
}
trap interrupted INT TERM HUP

list_targets() { cmake --build "$build" --target help >"$folder/targets" 2>/dev/null || true; }
is_target() { grep -q "^$1: " "$folder/targets"; } # TARGET

why_not_built() { # TARGET
  if ! cat "$folder"/configure*.out | sed -n "s/^-- zero: \(no .*so $1 is not built.*\)/\1/p" | grep -m 1 .; then
    is_target "$1" && echo "$1 was not built" || echo "this version has no $1"
  fi 2>/dev/null
}

# part NAME LIMIT COMMAND...: runs it for at most LIMIT seconds, and notes how it went: passed, failed, skipped
# (it ended with 77, or its program was not built) or no time in all; and a line of what it said. A test program
# that ran no test has failed.
part() {
  name=$1 limit=$2
  shift 2
  log=$folder/$name
  for word; do
    case "$word" in
      "$build"/*)
        [ -x "$word" ] || {
          skip "$name" "$(why_not_built "${word##*/}")"
          return 0
        }
        ;;
    esac
  done
  left=$((seconds - $(date +%s) + began))
  if [ "$left" -lt 5 ]; then
    result='no time'
    row "$name" "$result" 0 "$limit" "not begun"
    return 0
  fi
  result=failed
  [ "$limit" -le "${ZERO_PROOF_LIMIT:-$limit}" ] || limit=$ZERO_PROOF_LIMIT
  if [ "$limit" -gt "$left" ]; then
    result='no time'
    limit=$left
  fi
  at=$(date +%s)
  timeout -k 10 "$limit" "$@" >"$log.out" 2>"$log.err" </dev/null &
  running=$!
  code=0
  wait "$running" || code=$?
  running=
  took=$(($(date +%s) - at))
  if [ "$code" -eq 0 ] && ! grep -q 'test cases: *0 |' "$log.out"; then
    result=passed
    said=$(sed -n '/[^ ]/p' "$log.out" | tail -1)
  elif [ "$code" -eq 77 ]; then
    result=skipped
    said=$(cat "$log.err" "$log.out" | sed -n 's/^skipped: //p' | tail -1)
  elif [ "$code" -ne 0 ] && [ "$took" -ge "$limit" ]; then
    said="not over after its limit of $limit s"
  else
    result=failed
    # The first error, or else what it said last.
    said=$(cat "$log.err" "$log.out" | grep -m 1 'rror: ' || cat "$log.out" "$log.err" | sed -n '/[^ ]/p' | tail -1)
    [ "$code" -ne 0 ] || said="no test was run"
  fi
  row "$name" "$result" "$took" "$limit" "$said"
}

# The same for what measures: the page has all that it printed, even if it failed, as it does where a figure
# misses its goal, and with which NCCL and what memory.
measure() {
  part "$@"
  [ "$result" = skipped ] || [ ! -e "$log.out" ] || { grep '^NCCL ' "$log.err" || true; cat "$log.out"; } >"$log.figures"
}

# collectives NAME LIMIT PROGRAM OPTION...: a benchmark of collectives, as a table.
collectives() {
  # shellcheck disable=SC2016
  rows_to_table='"$@" "--benchmark_out=$0" >"$0.printed" || { status=$?; cat "$0.printed"; exit "$status"; }
    python3 bench/plot.py --table "$0"'
  name=$1 limit=$2
  shift 2
  measure "$name" "$limit" sh -c "$rows_to_table" "$folder/$name.json" "$@"
}

# build NAME LIMIT TARGET...: those that this configuration has, each of them even if another fails. What an
# earlier run has built is removed, because it shows nothing of this version.
build() {
  name=$1 limit=$2
  shift 2
  list_targets
  chosen=
  for target; do
    find "$build" -type f -name "$target" -exec rm -f {} + 2>/dev/null || true
    ! is_target "$target" || chosen="$chosen $target"
  done
  if [ -z "$chosen" ]; then
    skip "$name" "the configuration has none of $*"
    return 0
  fi
  # shellcheck disable=SC2086
  part "$name" "$limit" cmake --build "$build" --target $chosen -- -k 0
}

fact command "$command_line"
commit=$(git -c safe.directory='*' describe --always --dirty=', with changes' --exclude '*' 2>/dev/null || true)
fact zero "${commit:-no commit is known}"
fact system "$(uname -sr), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -1), $(nproc) processors"
if [ "$mode" = emulated ]; then
  fact GPUs "two emulated devices, of which figures say nothing"
else
  fact GPUs "$(printf '%s\n' "$found" | head -1), $there of them, used: $visible"
  fact CUDA "$(nvcc --version | sed -n 's/^.*release //p')"
fi

# prove_gpt OPTION...: the trainer. It has a folder of its own, since it is the host's trainer as well, which
# has other packages.
prove_gpt() {
  if [ ! -e bench/gpt_on_gpu.py ]; then
    skip gpt "this version has no train_gpt_cuda"
    return 0
  fi
  of_tests=$build
  if [ "$mode" = emulated ]; then
    trainer=$build/tests/emulated/zero_emulated_train_gpt
    set -- "$@" --tiny
  else
    build=build/cuda_gpt
    trainer=$build/examples/gpt/cuda/train_gpt_cuda
    # NCCL takes half of the time to compile.
    case " $* " in
      *" --nccl "*) over_nccl=ON ;;
      *) over_nccl=OFF ;;
    esac
    part configure_gpt 120 cmake --preset "$preset" -B "$build" -DCMAKE_CUDA_ARCHITECTURES=native -DZERO_WITH_MPI=OFF \
      -DZERO_BUILD_TESTS=OFF -DZERO_BUILD_GPT=ON -DZERO_BUILD_EXAMPLES=ON -DZERO_WITH_LIBTORCH=OFF \
      "-DZERO_WITH_NCCL=$over_nccl"
  fi
  build build_gpt 400 train_gpt "${trainer##*/}"
  measure gpt 300 env ZERO_EMULATED_ORDER=late python3 bench/gpt_on_gpu.py "$build/examples/gpt/train_gpt" "$trainer" \
    --json "$folder/gpt.json" "$@"
  build=$of_tests
}

# One rank on each of several GPUs, with NCCL.
prove_gpus() {
  if [ "$mode" = emulated ]; then
    tests=$build/tests/emulated/zero_emulated_tests
    collective_bench=$build/tests/emulated/zero_emulated_nccl_collective_bench
    step_bench=$build/tests/emulated/zero_emulated_nccl_step_bench
    sizes="--max 2K --benchmark_repetitions=1 --benchmark_min_time=0.001"
    elements=2048
    part configure 120 cmake --preset "$preset"
  else
    tests=$build/tests/nccl_library/zero_nccl_gpu_tests
    collective_bench=$build/bench/cuda/cuda_nccl_collective_bench
    step_bench=$build/bench/cuda/cuda_nccl_step_bench
    sizes="--min 8K --max 256M --factor 8 --benchmark_repetitions=5"
    elements=$((8 << 20))
    part configure 120 cmake --preset "$preset" -DCMAKE_CUDA_ARCHITECTURES=native -DZERO_WITH_MPI=OFF
    list_targets
    if [ "$result" = passed ] && ! is_target "${tests##*/}"; then
      row nccl failed 0 0 "CMake found no NCCL. It is libnccl-dev in NVIDIA's packages; NCCL_ROOT names another place"
    fi
    nccl=$(sed -n 's/^NCCL_INCLUDE_DIR:PATH=//p' "$build/CMakeCache.txt" 2>/dev/null || true)
    [ ! -e "$nccl/nccl.h" ] ||
      fact NCCL "$(sed -n 's/^#define NCCL_\(MAJOR\|MINOR\|PATCH\) *\([0-9]*\).*/\2/p' "$nccl/nccl.h" | paste -sd. -)"
    nvidia-smi topo -m >"$folder/topology.figures" 2>/dev/null || rm -f "$folder/topology.figures"
  fi
  build build 500 "${tests##*/}" "${collective_bench##*/}" "${step_bench##*/}"

  set -- env NCCL_CHECK_POINTERS=1 ZERO_EMULATED_ORDER=late "$tests" '--source-file=*/nccl_test.cu'
  operations='*ordered:*,*native:*'
  bits='NCCL: training has the host*'
  captured='NCCL: a captured step*'
  lost='NCCL: a step that some rank never takes*'
  part operations 180 "$@" --test-case="$operations"
  part bits 180 "$@" --test-case="$bits"
  part captured_step 120 "$@" --test-case="$captured"
  elsewhere=$operations,$bits,$captured
  [ "$mode" != emulated ] || elsewhere=$elsewhere,$lost
  part other_tests 240 "$@" --test-case-exclude="$elsewhere"

  export ZERO_TEST_LIMIT_S=170
  processes=tests/nccl_library/processes.sh
  if [ "$mode" = emulated ]; then
    # The emulated NCCL connects threads.
    export ZERO_EMULATED_ORDER=late
    part processes 180 "$processes" "$tests" 1 --test-case="*native:*,$bits,$captured"
    part killed_rank 120 "$@" --test-case="$lost"
  elif [ "$gpus" -eq 1 ]; then
    part processes 180 "$processes" --one-gpu "$tests" 2 --test-case="*native:*,$bits,$captured"
    part killed_rank 120 "$processes" --one-gpu --killed "$tests" 2 --test-case="$lost"
  else
    part processes 180 "$processes" "$tests" "$gpus" --test-case="$operations,$bits,$captured"
    part killed_rank 120 "$processes" --killed "$tests" "$gpus" --test-case="$lost"
  fi

  if [ "$gpus" -eq 1 ]; then
    for name in ordered native windows steps; do
      skip "$name" "there is one GPU, on which two processes show what is right and not how fast it is"
    done
  else
    # shellcheck disable=SC2086
    set -- "$collective_bench" --ranks "$gpus" --dtype bf16 $sizes
    collectives ordered 150 "$@"
    collectives native 150 "$@" --native
    collectives windows 150 "$@" --native --windows
    measure steps 150 "$step_bench" "$elements"
  fi
  if [ "$gpus" -eq 1 ]; then
    prove_gpt
  else
    prove_gpt --ranks "$gpus" --nccl
  fi
}

# One GPU: kernels, ranks that are threads, and NCCL as far as it goes.
prove_one_gpu() {
  if [ "$mode" = emulated ]; then
    tests=$build/tests/emulated/zero_emulated_tests
    bench=$build/tests/emulated/zero_emulated_nccl_collective_bench
    export ZERO_EMULATED_ORDER=late
    part configure 120 cmake --preset "$preset"
    build build_tests 500 "${tests##*/}"
    part tests 300 "$tests" '--source-file=*/space_test.cu,*/in_process_cuda_test.cu,*/capture_test.cu'
    build build_nccl 300 "${bench##*/}"
    # --gpus 2 has all of NCCL's.
    part nccl 300 "$tests" '--source-file=*/nccl_test.cu' '--test-case=*native:*,*registered*'
    collectives collectives 120 "$bench" --max 2K --benchmark_repetitions=1 --benchmark_min_time=0.001
    build build_slow_rows 300 zero_emulated_in_process_collective_bench zero_emulated_in_process_step_bench
    measure slow_rows 120 python3 bench/cuda/rows.py "$build" --emulated
    prove_gpt
    return 0
  fi
  tests=$build/tests/cuda/zero_cuda_tests
  nccl_tests=$build/tests/nccl_library/zero_nccl_gpu_tests
  part configure 120 cmake --preset "$preset" -DCMAKE_CUDA_ARCHITECTURES=native -DZERO_WITH_MPI=OFF
  build build_tests 300 zero_cuda_tests
  part bits 120 "$tests" '--source-file=*/space_test.cu'
  part threads 120 "$tests" '--source-file=*/in_process_cuda_test.cu,*/policies_test.cu'
  part captured_step 120 "$tests" '--source-file=*/capture_test.cu'
  part tests 180 "$tests"
  build build_update 200 cuda_update_bench
  measure update 120 "$build/bench/cuda/cuda_update_bench"
  build build_nccl 300 zero_nccl_gpu_tests
  part nccl_one_rank 120 "$nccl_tests"
  part nccl_two_processes 130 tests/nccl_library/processes.sh --one-gpu "$nccl_tests" 2 --test-case='*native:*'
  prove_gpt
  part memcheck 240 tests/cuda/sanitize.sh "$tests" memcheck
  build build_collectives 200 cuda_in_process_collective_bench
  collectives collectives 120 "$build/bench/cuda/cuda_in_process_collective_bench" --max 64M --benchmark_repetitions=3
  build build_steps 200 cuda_in_process_step_bench
  measure slow_rows 300 python3 bench/cuda/rows.py "$build" --seconds 290 --save "$folder/slow_rows.json"
}

if [ -n "$gpus" ]; then
  prove_gpus
else
  prove_one_gpu
fi
finish
