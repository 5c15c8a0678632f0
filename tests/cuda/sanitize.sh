#!/bin/sh
# Runs tests that need a GPU under tools of compute-sanitizer.
# Usage: sanitize.sh <program> <tool>...
set -eu
tests=$1
shift
if ! command -v compute-sanitizer >/dev/null 2>&1; then
  echo "skipped: compute-sanitizer is not in the PATH"
  exit 77
fi
status=0
"$tests" --count >/dev/null || status=$?
if [ "$status" -eq 77 ]; then
  echo "skipped: there is no GPU to run on"
  exit 77
fi
for tool in "$@"; do
  echo "=== $tool"
  options=
  only=
  # Tests call the runtime wrongly on purpose, and look at what it answers.
  [ "$tool" != memcheck ] || options="--report-api-errors no"
  # Of data that another thread has copied to the device, CUDA 13.0's says that nobody wrote it, and ends
  # with a segmentation fault now and then.
  [ "$tool" != initcheck ] || only="--source-file=*/space_test.cu"
  # shellcheck disable=SC2086
  compute-sanitizer --tool "$tool" $options --error-exitcode 1 "$tests" $only || status=1
done
exit "$status"
