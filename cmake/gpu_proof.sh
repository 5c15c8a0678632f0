#!/bin/sh
# What a GPU shows of zero in ten minutes: builds what only a GPU runs, runs it in the order of worth,
# and leaves build/gpu_proof.txt and build/gpu_proof.json. A part that fails, or that there is no time
# for, stops no other.
#
#   sh cmake/gpu_proof.sh --carry      # where packages are: what has to travel, in carried/ (60 MB at most)
#   sh cmake/gpu_proof.sh              # where the GPU is; no network is needed
#   sh cmake/gpu_proof.sh --emulated   # anywhere: the same parts on the emulated device of the tests
#
# Needs, where the GPU is: nvcc of CUDA 12.9 or newer, CMake, Ninja, Python 3, a C++20 compiler, and
# carried/ beside cmake/. ZERO_PROOF_SECONDS is the time in all (600).
set -eu
cd "$(dirname "$0")/.."

mode=device
case "${1-}" in
  "") ;;
  --emulated) mode=emulated ;;
  --carry) mode=carry ;;
  *)
    sed -n '2,/^set -eu/s/^#$//p; 2,/^set -eu/s/^# //p' "$0"
    [ "${1-}" = --help ] || exit 2
    exit 0
    ;;
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

seconds=${ZERO_PROOF_SECONDS:-600}
began=$(date +%s)
mkdir -p build/gpu_proof
rows=build/gpu_proof/rows
: >"$rows"

# part NAME COMMAND...: passed, failed, skipped (77, or no device) or no time, and the last line it said.
part() {
  name=$1
  shift
  log=build/gpu_proof/$name.log
  left=$((seconds - $(date +%s) + began))
  if [ "$left" -lt 5 ]; then
    printf '%s\tno time\t0\t-\n' "$name" >>"$rows"
    return 0
  fi
  at=$(date +%s)
  verdict=passed
  timeout "$left" "$@" >"$log" 2>&1 </dev/null || {
    code=$?
    verdict=failed
    [ "$code" -ne 77 ] || verdict=skipped
    [ "$code" -ne 124 ] || verdict='no time'
  }
  said=$(sed -n '/[^ ]/p' "$log" | tail -1 | tr '\t"\\' "  /" | cut -c1-150)
  printf '%s\t%s\t%s\t%s\n' "$name" "$verdict" "$(($(date +%s) - at))" "${said:--}" >>"$rows"
  echo "zero: $name: $verdict" >&2
}

if [ "$mode" = emulated ]; then
  build=build/full
  part configure cmake --preset full
  part build_tests cmake --build --preset full --target zero_emulated_tests
  part tests env ZERO_EMULATED_ORDER=late $build/tests/emulated/zero_emulated_tests \
    '--source-file=*/space_test.cu,*/in_process_cuda_test.cu,*/capture_test.cu'
  part build_nccl cmake --build --preset full --target zero_emulated_nccl_collective_bench
  part nccl env ZERO_EMULATED_ORDER=late $build/tests/emulated/zero_emulated_tests \
    '--source-file=*/nccl_test.cu'
  part collectives $build/tests/emulated/zero_emulated_nccl_collective_bench --max 2K --benchmark_repetitions=1 --benchmark_min_time=0.001
  part build_gpt cmake --build --preset full --target train_gpt zero_emulated_train_gpt
  part gpt env ZERO_EMULATED_ORDER=late python3 bench/gpt_on_gpu.py $build/examples/gpt/train_gpt \
    $build/tests/emulated/zero_emulated_train_gpt --tiny
  machine="emulated device"
else
  command -v nvcc >/dev/null 2>&1 || {
    echo "zero: no nvcc in the PATH; --emulated needs none" >&2
    exit 1
  }
  [ ! -d carried ] || export CMAKE_PREFIX_PATH="$PWD/carried${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}"
  build=build/cuda
  tests=$build/tests
  part configure cmake --preset cuda -DCMAKE_CUDA_ARCHITECTURES=native -DZERO_WITH_MPI=OFF
  part build_tests cmake --build --preset cuda --target zero_cuda_tests
  part bits $tests/cuda/zero_cuda_tests '--source-file=*/space_test.cu'
  part threads $tests/cuda/zero_cuda_tests '--source-file=*/in_process_cuda_test.cu,*/policies_test.cu'
  part captured_step $tests/cuda/zero_cuda_tests '--source-file=*/capture_test.cu'
  part tests $tests/cuda/zero_cuda_tests
  part build_update cmake --build --preset cuda --target cuda_update_bench
  part update $build/bench/cuda/cuda_update_bench
  part build_nccl cmake --build --preset cuda --target zero_nccl_gpu_tests zero_nccl_two_processes
  part nccl_one_rank $tests/nccl_library/zero_nccl_gpu_tests
  part nccl_two_processes tests/nccl_library/two_processes_one_gpu.sh \
    $tests/nccl_library/zero_nccl_two_processes
  # Another folder, since it is the host's trainer as well, which has other packages.
  part configure_gpt cmake --preset cuda -B build/cuda_gpt -DCMAKE_CUDA_ARCHITECTURES=native -DZERO_WITH_MPI=OFF \
    -DZERO_BUILD_TESTS=OFF -DZERO_BUILD_GPT=ON -DZERO_BUILD_EXAMPLES=ON -DZERO_WITH_LIBTORCH=OFF
  part build_gpt cmake --build build/cuda_gpt --target train_gpt train_gpt_cuda
  part gpt python3 bench/gpt_on_gpu.py build/cuda_gpt/examples/gpt/train_gpt \
    build/cuda_gpt/examples/gpt/cuda/train_gpt_cuda --json build/gpu_proof/gpt.json
  part memcheck tests/cuda/sanitize.sh $tests/cuda/zero_cuda_tests memcheck
  part build_collectives cmake --build --preset cuda --target cuda_in_process_collective_bench
  part collectives $build/bench/cuda/cuda_in_process_collective_bench --max 64M --benchmark_repetitions=3
  machine=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1)
fi

{
  printf '%s, zero %s, %s s of %s\n\n' "${machine:-no GPU}" "$(git rev-parse --short HEAD 2>/dev/null || echo -)" \
    "$(($(date +%s) - began))" "$seconds"
  awk -F'\t' '{ printf "%-20s %-8s %5d s  %s\n", $1, $2, $3, $4 }' "$rows"
} >build/gpu_proof.txt
awk -F'\t' -v machine="${machine:-no GPU}" '
  BEGIN { printf "{\"machine\": \"%s\", \"parts\": [", machine }
  { printf "%s\n {\"name\": \"%s\", \"result\": \"%s\", \"seconds\": %d, \"said\": \"%s\"}", (NR > 1 ? "," : ""), $1, $2, $3, $4 }
  END { print "\n]}" }' "$rows" >build/gpu_proof.json
cat build/gpu_proof.txt
! grep -q "$(printf '\tfailed\t')" "$rows"
