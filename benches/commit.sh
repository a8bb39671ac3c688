# Durable commands at the engine, beside this disk's fsync rate and beside etcd and PostgreSQL in the same run.
set -euo pipefail
. benches/lib.sh
build_peers
engine=$(build_bench engine)

if wants etcd-server etcd; then
  etcd --data-dir "$work/etcd" --listen-client-urls http://127.0.0.1:23790 --advertise-client-urls http://127.0.0.1:23790 \
    --listen-peer-urls http://127.0.0.1:23791 --initial-advertise-peer-urls http://127.0.0.1:23791 \
    --initial-cluster default=http://127.0.0.1:23791 --logger zap --log-level error >"$work/etcd.log" 2>&1 &
  children+=($!)
  listening 23790
  sleep 2 # it elects itself
  etcd_puts() { for clients in 1 16 128; do "$peers" etcd-put http://127.0.0.1:23790 "$seconds" "$clients"; done; }
else
  etcd_puts() { :; }
fi

if serve_postgres; then
  as_postgres psql -h "$work/pg" -p 25432 -X -q -d postgres -c 'create table j(k bigserial primary key, v bytea)'
  echo "insert into j(v) values (decode(repeat('07',256),'hex'));" >"$work/insert.sql"
  pg_inserts() { for clients in 1 16 64; do pgbench pg "$clients" "$work/insert.sql"; done; }
else
  pg_inserts() { :; }
fi

for _ in $(seq "$rounds"); do
  {
    "$peers" fsync "$work" "$seconds"
    for writers in 1 16 64 128; do "$engine" commit "$work" "$seconds" "$writers"; done
    etcd_puts
    pg_inserts
  } | ratio commit_w1_vs_fsync commit_w1 fsync | ratio commit_w16_vs_fsync commit_w16 fsync |
    ratio commit_w64_vs_fsync commit_w64 fsync | ratio commit_w128_vs_fsync commit_w128 fsync |
    ratio commit_w1_vs_etcd commit_w1 etcd_w1 | ratio commit_w16_vs_etcd commit_w16 etcd_w16 |
    ratio commit_w128_vs_etcd commit_w128 etcd_w128 | ratio commit_w16_vs_pg commit_w16 pg_w16
done | median
