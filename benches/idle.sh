# What Holdfast costs while nothing happens: processor of an appliance with 100 agents, memory, size of the binary.
set -euo pipefail
. benches/lib.sh
load_program=$(build_bench load)

serve_alone
sleep 2
echo "appliance_rss_mib $(rss "$appliance") MiB"
load idle 100 "${IDLE_SECONDS:-60}"
echo "appliance_after100_rss_mib $(rss "$appliance") MiB"

# One real agent with its data plane, beside the appliance in the same namespace.
in_net "$HOLDFAST" --socket "$socket" node add alone >"$work/token" 2>/dev/null
in_net "$HOLDFAST" join "@$work/token" --state "$work/agent" >/dev/null
ip netns exec "$net" "$HOLDFAST" agent run --state "$work/agent" >"$work/agent.log" 2>&1 &
agent=$!
children+=("$agent")
until [ -e "$work/agent/ready" ]; do
  kill -0 "$agent" || { tail -3 "$work/agent.log" >&2; exit 1; }
  sleep 0.05
done
sleep 5
leave=("in_net '$HOLDFAST' agent down --state '$work/agent' >/dev/null 2>&1" "${leave[@]}")
dataplane=$(cat "$work/agent/dataplane.lock")
echo "agent_rss_mib $(rss "$agent" "$dataplane") MiB"
echo "agent_pss_mib $(pss "$agent" "$dataplane") MiB"
echo "binary_mib $(stat -c %s "$HOLDFAST" | awk '{ printf "%.1f", $1 / 1048576 }') MiB"
