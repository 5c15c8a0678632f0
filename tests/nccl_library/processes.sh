#!/bin/sh
# Runs tests of nccl_test.cu whose ranks are processes, one on each GPU.
#
# Usage: processes.sh [--one-gpu] [--killed] PROGRAM RANKS [OPTION OF DOCTEST]...
#
# --one-gpu  all ranks are on one GPU, which NCCL does not support but can be talked into: every process
#            claims to be a host of its own, and all data goes through sockets. For correctness only: each
#            rank waits for the others' time slices.
# --killed   the last rank is to end by SIGKILL, and the others are to pass.
set -eu

one_gpu=''
killed=''
while :; do
  case "${1-}" in
    --one-gpu) one_gpu=yes ;;
    --killed) killed=yes ;;
    *) break ;;
  esac
  shift
done
[ "$#" -ge 2 ] || {
  sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0" >&2
  exit 2
}
program=$1 ranks=$2
shift 2
limit_s=${ZERO_TEST_LIMIT_S:-120}
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

if [ -n "$one_gpu" ]; then
  first=$(printf '%s\n' "${CUDA_VISIBLE_DEVICES:-0}" | cut -d, -f 1)
  export CUDA_VISIBLE_DEVICES="$first" NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 \
    NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_MNNVL_ENABLE=0 NCCL_NVLS_ENABLE=0 NCCL_CUMEM_ENABLE=0 \
    NCCL_RAS_ENABLE=0 NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_MAX_CTAS=1 NCCL_BUFFSIZE=1048576
fi
export NCCL_CHECK_POINTERS=1 NCCL_DEBUG="${NCCL_DEBUG:-WARN}"

# In the foreground, so that who ends this script ends them, too.
pids=
rank=0
while [ "$rank" -lt "$ranks" ]; do
  env ZERO_TEST_RANK="$rank" ZERO_TEST_RANKS="$ranks" ZERO_TEST_MEETING="$directory" \
    ${one_gpu:+NCCL_HOSTID="zero-$rank"} \
    timeout --foreground -k 10 "$limit_s" "$program" "$@" >"$directory/$rank.log" 2>&1 </dev/null &
  pids="$pids $!"
  rank=$((rank + 1))
done

failed=
rank=0
for pid in $pids; do
  status=0
  wait "$pid" 2>/dev/null || status=$?
  expected=0
  [ -z "$killed" ] || [ "$((rank + 1))" -ne "$ranks" ] || expected=137
  sed "s/^/rank $rank: /" "$directory/$rank.log"
  if [ "$status" -eq 77 ]; then
    echo "skipped: there is no GPU to run on"
    exit 77
  fi
  # doctest succeeds where its options match no test.
  ! grep -q 'test cases: *0 |' "$directory/$rank.log" || status="$status, and ran no test"
  if [ "$status" != "$expected" ]; then
    failed="$failed, rank $rank with status $status"
  fi
  rank=$((rank + 1))
done
if [ -n "$failed" ]; then
  echo "of $ranks processes these failed: ${failed#, }"
  exit 1
fi
echo "$ranks processes${one_gpu:+ on one GPU} passed${killed:+, of which the last one was killed}"
