# What the benches share: source it from a file beside it.

work=$(mktemp -d "${BENCH_DIR:-${TMPDIR:-/tmp}}/holdfast-bench.XXXXXX") # must lie on the disk that is measured
rounds=${ROUNDS:-5}
seconds=${SECONDS_EACH:-2}
children=()
leave=()

# Ends what this bench started, and removes what it made, however it ends.
finish() {
  local child line
  for child in "${children[@]:-}"; do [ -z "$child" ] || kill "$child" 2>/dev/null || true; done
  for child in "${children[@]:-}"; do [ -z "$child" ] || wait "$child" 2>/dev/null || true; done
  for line in "${leave[@]:-}"; do [ -z "$line" ] || eval "$line" || true; done
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 143' TERM INT

# A kernel without preemption makes every wake-up wait for the next tick while anything else runs, which hides each figure
# below 4 ms. Round-robin scheduling (bounded by the kernel to 95 %) avoids that; where it is not allowed, say so.
chrt -r -p 1 $$ >/dev/null 2>&1 || echo "no real-time scheduling here: figures are noisier" >&2

# build_peers : the measuring client for other programs and for the limits of this machine.
build_peers() {
  cargo build --release --quiet --manifest-path benches/peers/Cargo.toml --target-dir "$target"
  peers="$target/release/peers"
}

# wants PACKAGE PROGRAM : whether a peer is installed, installing it where we may.
wants() {
  command -v "$2" >/dev/null && return
  [ "$(id -u)" -eq 0 ] && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$1" >/dev/null 2>&1 && return
  echo "$1 is not installed: its lines are left out" >&2
  return 1
}

# median : reads lines "name value unit" of all rounds and prints each name once, with its median, least and most.
median() {
  awk 'NF >= 3 { if (!($1 in n)) order[++names] = $1; v[$1, ++n[$1]] = $2; u[$1] = $3 }
    END { for (i = 1; i <= names; i++) { k = order[i]; c = n[k]
      for (a = 1; a <= c; a++) for (b = a + 1; b <= c; b++) if (v[k, b] + 0 < v[k, a] + 0) { t = v[k, a]; v[k, a] = v[k, b]; v[k, b] = t }
      printf "%s %.4g %s # %.4g..%.4g n=%d\n", k, v[k, int((c + 1) / 2)], u[k], v[k, 1], v[k, c], c } }'
}

# ratio NAME OURS THEIRS : passes lines on and adds NAME = OURS / THEIRS of the same round.
ratio() {
  awk -v name="$1" -v ours="$2" -v theirs="$3" '{ print } $1 == ours { x = $2 } $1 == theirs { y = $2 }
    END { if (x != "" && y + 0 > 0) printf "%s %.4f x\n", name, x / y }'
}

# listening PORT : waits until something accepts there.
listening() {
  local _
  for _ in $(seq 200); do (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return; sleep 0.05; done
  echo "nothing listens on port $1" >&2
  return 1
}

# serve_postgres : a fresh PostgreSQL that commits durably, on a socket in $work/pg alone.
as_postgres() { setpriv --reuid postgres --regid postgres --clear-groups env LC_ALL=C "$@"; }
serve_postgres() {
  wants postgresql pg_ctlcluster || return 1
  pg=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
  chmod 755 "$work"
  install -d -o postgres -m 700 "$work/pg" "$work/pgbench"
  as_postgres "$pg/initdb" -D "$work/pg" -A trust >/dev/null
  as_postgres "$pg/pg_ctl" -D "$work/pg" -w -l "$work/pg/log" \
    -o "-p 25432 -k $work/pg -c listen_addresses='' -c max_connections=200 -c shared_buffers=256MB" start >/dev/null
  leave=("as_postgres '$pg/pg_ctl' -D '$work/pg' -m fast stop >/dev/null" "${leave[@]:-}")
}

# pgbench NAME CLIENTS FILE : transactions a second of a script, and their latencies.
pgbench() {
  rm -f "$work"/pgbench/*
  (cd "$work/pgbench" && as_postgres "$pg/pgbench" -n -h "$work/pg" -p 25432 -c "$2" -j 1 -T "$seconds" -f "$3" -l postgres 2>/dev/null) |
    awk -v n="$1_w$2" '/^tps/ { print n, $3, "/s" }'
  cat "$work"/pgbench/pgbench_log* | awk '{ print $3 }' | sort -n |
    awk -v n="$1_w$2" '{ a[NR] = $1 } END { print n "_p50_ms", a[int(NR * .5) + 1] / 1000, "ms"; print n "_p99_ms", a[int(NR * .99)] / 1000, "ms" }'
}

# in_net COMMAND… : in this bench's own network namespace, which has the address 198.51.100.2 and no way out.
net=hfbench$$
in_net() { ip netns exec "$net" "$@"; }

# serve_alone : a fresh appliance in that namespace; sets appliance (its process id) and socket.
serve_alone() {
  ip netns add "$net"
  leave+=("ip netns del $net")
  in_net ip link set lo up
  in_net ip addr add 198.51.100.2/32 dev lo
  in_net "$HOLDFAST" init --state "$work/ap" --fleet bench --advertise 198.51.100.2 --recovery-file "$work/recovery" >/dev/null
  # Not through in_net: a function in the background is a shell, and its process id would be the shell's.
  ip netns exec "$net" "$HOLDFAST" serve --state "$work/ap" --listen 198.51.100.2 >"$work/serve.log" 2>&1 &
  appliance=$!
  children+=("$appliance")
  socket=$work/ap/operator.sock
  until [ -e "$work/ap/ready" ]; do
    kill -0 "$appliance" || { tail -3 "$work/serve.log" >&2; return 1; }
    sleep 0.05
  done
}

# end_alone : ends that appliance and its namespace, so that another can begin afresh.
end_alone() {
  kill "$appliance"
  wait "$appliance" || true
  ip netns del "$net"
  rm -rf "$work/ap" "$work/recovery"
  children=("${children[@]/$appliance/}")
  leave=("${leave[@]/ip netns del $net/}")
}

# load WHAT NODES AMOUNT : benches/load against that appliance.
load() {
  # Rounds run in subshells, so a counter would not do; the nodes are named after their directory.
  local nodes
  nodes=$work/n$(date +%s%N)
  mkdir "$nodes"
  in_net "$load_program" "$1" "$HOLDFAST" "$socket" "$appliance" "$nodes" "$2" "$3"
}

# build_bench NAME : builds benches/NAME.rs with optimisation and prints where it is.
build_bench() {
  cargo bench --quiet --bench "$1" --no-run --message-format=json 2>/dev/null |
    sed -n 's/.*"kind":\["bench"\].*"executable":"\([^"]*\)".*/\1/p' | tail -1
}

# rss PROCESS_ID… : resident memory of all together, MiB.
rss() {
  local pid
  for pid in "$@"; do awk '/^VmRSS/ { print $2 }' "/proc/$pid/status"; done | awk '{ s += $1 } END { printf "%.1f", s / 1024 }'
}

# pss PROCESS_ID… : the same, but pages that several processes share are counted once, split among them.
pss() {
  local pid
  for pid in "$@"; do awk '/^Pss:/ { print $2 }' "/proc/$pid/smaps_rollup"; done | awk '{ s += $1 } END { printf "%.1f", s / 1024 }'
}
