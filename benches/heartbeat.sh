# Signed, unchanged heartbeats per second of processor time, beside the rate at which one core verifies signatures.
set -euo pipefail
. benches/lib.sh
build_peers
load_program=$(build_bench load)

serve_alone
for _ in $(seq "$rounds"); do
  {
    "$peers" ed25519 1
    load heartbeat 8 "$seconds"
  } | ratio hb_signed_vs_verify hb_signed_per_cpu_s ed25519_verify
done | median
