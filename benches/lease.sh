# Whole cycles of a job (leased, extended, completed with a result, another one queued in its place) with 10,000 waiting:
# at the engine, and through the gateway's mutual TLS, beside PostgreSQL's FOR UPDATE SKIP LOCKED in the same run.
set -euo pipefail
. benches/lib.sh
engine=$(build_bench engine)
load_program=$(build_bench load)

if serve_postgres; then
  psql() { as_postgres psql -h "$work/pg" -p 25432 -X -q -d postgres -v ON_ERROR_STOP=1 "$@"; }
  cat >"$work/cycle.sql" <<'SQL'
update jobs set state='leased', lease=gen_random_uuid(), expires=now()+interval '45 s', node=:client_id where id=(select id from jobs where state='queued' order by id for update skip locked limit 1) returning id, lease \gset
update jobs set expires=now()+interval '45 s' where id=:id and lease=':lease' and state='leased' and expires>now();
begin;
update jobs set state='done', result='{"reached":"198.51.100.7:5432"}' where id=:id and lease=':lease' and state='leased' and expires>now();
insert into jobs(body) values ('{"kind":"service.check","probe":{"tcp":"198.51.100.7:5432"},"timeout_s":10}');
commit;
SQL
  psql -c "create table jobs(id bigserial primary key, state text not null default 'queued', lease uuid, expires timestamptz, node int, body jsonb not null, result jsonb)" \
    -c "create index waiting on jobs(id) where state='queued'" \
    -c "insert into jobs(body) select jsonb_build_object('kind','service.check','probe',jsonb_build_object('tcp','198.51.100.7:5432'),'timeout_s',g) from generate_series(1,10000) g" \
    -c 'vacuum analyze jobs'
  pg_cycles() { for clients in 1 8 32; do pgbench pg "$clients" "$work/cycle.sql"; done; }
else
  pg_cycles() { :; }
fi

# In this shell and not in a pipe, so that each round's appliance is known to whoever ends what is left.
for _ in $(seq "$rounds"); do
  serve_alone
  {
    pg_cycles
    for workers in 1 8 32; do "$engine" lease "$work" "$seconds" "$workers"; done
    for workers in 8 32; do load lease "$workers" "$seconds"; done
  } >"$work/round"
  end_alone
  ratio lease_w1_vs_pg lease_w1 pg_w1 <"$work/round" | ratio lease_w8_vs_pg lease_w8 pg_w8 | ratio lease_w32_vs_pg lease_w32 pg_w32 |
    ratio lease_api_w8_vs_pg lease_api_w8 pg_w8 | ratio lease_api_w32_vs_pg lease_api_w32 pg_w32 |
    ratio lease_api_w8_p99_vs_pg lease_api_w8_p99_ms pg_w8_p99_ms |
    ratio lease_api_w32_p99_vs_pg lease_api_w32_p99_ms pg_w32_p99_ms >>"$work/lines"
done
median <"$work/lines"
