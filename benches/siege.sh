# Heartbeats of eight nodes on kept connections, alone, and then beside 500 half-open handshakes and chains of 900
# certificates, sent as fast as they are refused.
set -euo pipefail
. benches/lib.sh
load_program=$(build_bench load)

serve_alone
for _ in $(seq "$rounds"); do load siege 8 "$((seconds * 3))"; done | median
