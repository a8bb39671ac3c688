# Unchanged heartbeats per second of processor time: signed ones beside the rate at which one core verifies signatures, and
# ones on a kept mutual-TLS connection beside a bare GET over TLS to the same server.
set -euo pipefail
. benches/lib.sh
build_peers
load_program=$(build_bench load)

serve_alone
for _ in $(seq "$rounds"); do
  {
    "$peers" ed25519 1
    load heartbeat 8 "$seconds"
    load presence 8 "$seconds"
  } | ratio hb_signed_vs_verify hb_signed_per_cpu_s ed25519_verify | ratio hb_mtls_vs_tls_get hb_mtls_per_cpu_s tls_get_per_cpu_s
done | median
