# How long people wait: from `node add` to the first ping, and from `service publish` to the name on another machine.
set -euo pipefail
. benches/lib.sh

serve_alone
# The appliance's address moves to a bridge, on which every machine has a namespace of its own.
in_net ip addr del 198.51.100.2/32 dev lo
in_net ip link add wan type bridge
in_net ip addr add 198.51.100.2/24 dev wan
in_net ip link set wan up

now() { date +%s%3N; }
on() { local machine=$1; shift; ip netns exec "$net-$machine" "$@"; }

# What a loop prints goes through a file, not a pipe: in a pipe's subshell the list of what to remove would be lost.

# join NAME OCTET : a machine on the bridge, added, joined and running; its mesh address in address_NAME.
join() {
  ip netns add "$net-$1"
  leave=("ip netns del $net-$1" "${leave[@]}")
  ip link add "w$2" netns "$net" type veth peer name eth0 netns "$net-$1"
  in_net ip link set "w$2" master wan up
  on "$1" ip link set lo up
  on "$1" ip addr add "198.51.100.$2/24" dev eth0
  on "$1" ip link set eth0 up
  # The switch would otherwise drop the first packets while it learns.
  on "$1" ping -c1 -W2 198.51.100.2 >/dev/null
  begun=$(now)
  in_net "$HOLDFAST" --socket "$socket" node add "$1" --endpoint "198.51.100.$2:51820" >"$work/$1.token" 2>/dev/null
  on "$1" "$HOLDFAST" join "@$work/$1.token" --state "$work/$1" >/dev/null
  ip netns exec "$net-$1" "$HOLDFAST" agent run --state "$work/$1" >"$work/$1.log" 2>&1 &
  children+=($!)
  leave=("on $1 '$HOLDFAST' agent down --state '$work/$1' >/dev/null 2>&1" "${leave[@]}")
  until [ -e "$work/$1/ready" ]; do sleep 0.01; done
}
address() { in_net "$HOLDFAST" --socket "$socket" node show "$1" -o json | sed -n 's/.*"address": *"\([0-9.]*\)".*/\1/p' | head -1; }

join first 10
first=$(address first)
octet=20
for _ in 1 2 3 4 5; do
  octet=$((octet + 1))
  join "m$octet" "$octet"
  until on "m$octet" ping -c1 -W1 "$first" >/dev/null 2>&1; do :; done
  echo "join_to_ping_ms $(($(now) - begun)) ms"
done >"$work/joined"
median <"$work/joined"

join other 11
other=$(address other)
for _ in $(seq 20); do
  begun=$(now)
  on first "$HOLDFAST" service publish bench/web --port 80 --state "$work/first" >/dev/null 2>&1
  until on other dig +short +time=1 +tries=1 "@$other" web.bench.internal A 2>/dev/null | grep -q .; do :; done
  echo "publish_to_name_ms $(($(now) - begun)) ms"
  on first "$HOLDFAST" service withdraw bench/web --state "$work/first" >/dev/null 2>&1
  while on other dig +short +time=1 +tries=1 "@$other" web.bench.internal A 2>/dev/null | grep -q .; do :; done
done | median
