#!/bin/sh
# Several NCCL ranks on ONE GPU, one process each, which NCCL does not support but can be talked
# into: every process claims to be a host of its own, and all data goes through sockets. For
# correctness only: each rank waits for the others' time slices.
#
# Usage: two_processes_one_gpu.sh <two_processes program> [ranks]
set -eu

program=$1
ranks=${2:-2}
limit_s=${ZERO_TEST_LIMIT_S:-120}
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

pids=
rank=0
while [ "$rank" -lt "$ranks" ]; do
  env NCCL_HOSTID="zero-$rank" CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}" \
    NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_P2P_DISABLE=1 \
    NCCL_SHM_DISABLE=1 NCCL_MNNVL_ENABLE=0 NCCL_NVLS_ENABLE=0 NCCL_CUMEM_ENABLE=0 \
    NCCL_RAS_ENABLE=0 NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_MAX_CTAS=1 \
    NCCL_BUFFSIZE=1048576 NCCL_CHECK_POINTERS=1 NCCL_DEBUG=WARN \
    timeout -k 10 "$limit_s" "$program" "$rank" "$ranks" "$directory/id" &
  pids="$pids $!"
  rank=$((rank + 1))
done

status=0
for pid in $pids; do
  wait "$pid" || status=$?
done
exit "$status"
