# How fast a change reaches everybody who holds a stream, received and verified, beside the least that it could take.
set -euo pipefail
. benches/lib.sh
build_peers
load_program=$(build_bench load)
ulimit -n 8192 2>/dev/null || true

serve_alone
"$peers" fanout "$work" 250 100
load fanout 251 100
