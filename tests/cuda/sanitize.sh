#!/bin/sh
# Runs the CUDA tests under compute-sanitizer's four tools. Usage: sanitize.sh <zero_cuda_tests>
set -eu
tests=$1
if ! command -v compute-sanitizer >/dev/null 2>&1; then
  echo "skipped: compute-sanitizer is not in the PATH"
  exit 77
fi
status=0
"$tests" --count >/dev/null || status=$?
if [ "$status" -eq 77 ]; then
  echo "skipped: no GPU to run on"
  exit 77
fi
for tool in memcheck racecheck initcheck synccheck; do
  echo "=== $tool"
  compute-sanitizer --tool "$tool" --error-exitcode 1 "$tests" || status=1
done
exit "$status"
