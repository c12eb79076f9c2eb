# Whole engines between the two sides, over RDMA and TCP: rails that go away under a request, and a target that is killed.
engine_there=10.78.0.2:12345
now() { # hundredths of a second since the guest started
	cut -d' ' -f1 /proc/uptime | tr -d .
}
serve() { # serve SEED: a target with a pattern; sets server, address and listening, when it said that it takes requests
	rm -f /tmp/served
	peer "$te" serve --name $engine_there --size 32MiB --pattern "$1" --json --set transports=rdma,tcp \
		--set rdma.nics=rxep0,rxep1 --set 'rdma.rail_map=rxep0=rxe0;rxep1=rxe1' >/tmp/served &
	server=$!
	tries=0
	until grep -q segment /tmp/served 2>/dev/null || [ $tries = 1500 ]; do
		sleep 0.02
		tries=$((tries + 1))
	done
	listening=$(now)
	address=$(tr -d ' \n' </tmp/served | sed 's/.*"addr":\([0-9]*\).*/\1/')
}
transfer() { # transfer SIZE BATCH SEED OP: the path it took, or what went wrong
	said=$("$te" check --peer $engine_there --name 10.78.0.1 --addr "$address" --size "$1" --batch "$2" --seed "$3" --op "$4" \
		--json --set transports=rdma,tcp --set rdma.nics=rxe0,rxe1 --set 'rdma.rail_map=rxe0=rxep0;rxe1=rxep1' 2>&1) || {
		echo "$said"
		return 1
	}
	echo "$said" | tr -d '\n' | sed 's/.*"path": *"\([^"]*\)".*/\1/'
}
over() { # over TRANSPORT SIZE BATCH SEED OP: it took that path
	wanted=$1
	shift
	path=$(transfer "$@") || {
		echo "$path"
		return 1
	}
	echo "$path"
	case $path in *"$wanted"*) ;; *) return 1 ;; esac
}
carried() {
	cat /sys/class/net/eth0/statistics/tx_bytes
}
rails() { # rails up|down
	ip link set eth0 "$1"
	ip link set eth1 "$1"
}
without_rails() {
	begin=$(carried)
	over tcp 32MiB 32 8 both >/tmp/without &
	client=$!
	tries=0
	until [ $(($(carried) - begin)) -gt 2000000 ] || [ $tries = 300 ]; do
		sleep 0.05
		tries=$((tries + 1))
	done
	rails down
	wait $client
	status=$?
	rails up
	cat /tmp/without
	return $status
}
serve 5
check "engines use the rails" over rdma 4MiB 16 5 read
bench() {
	"$te" bench initiator --peer $engine_there --name 10.78.0.1 --op write --area 16MiB --rounds 1 --duration 2s --json \
		--set transports=rdma --set rdma.nics=rxe0,rxe1 --set 'rdma.rail_map=rxe0=rxep0;rxe1=rxep1' >/tmp/bench.out 2>&1 || {
		cat /tmp/bench.out
		return 1
	}
	# Its rails by name, and what stood in the way.
	for part in '"eth0"' '"eth1"' '"limit"'; do
		grep -q "$part" /tmp/bench.out || {
			echo "the bench does not name $part"
			cat /tmp/bench.out
			return 1
		}
	done
	tr -d '\n' </tmp/bench.out | sed 's/.*"limit": *"\([^"]*\)".*/limited by \1/'
}
check "the bench names the rails it used, and what limits" bench
check "a request goes on over TCP when both rails go down" without_rails
check "rails that are up are used again" over rdma 4MiB 16 9 both
# Killed, and another life at the same address: nothing of the first is taken for its own.
kill -KILL $server
wait $server 2>/dev/null
killed=$(now)
# An initiator that is there before the new life, so that the start of programs is not counted. It prints when it has compared.
"$te" check --peer $engine_there --name 10.78.0.1 --size 4MiB --batch 16 --seed 77 --op read --wait 60s --json \
	--set transports=rdma,tcp --set rdma.nics=rxe0,rxe1 --set 'rdma.rail_map=rxe0=rxep0;rxe1=rxep1' >/tmp/first 2>&1 &
first=$!
serve 77
until grep -q verified /tmp/first || ! kill -0 $first 2>/dev/null; do
	sleep 0.02
done
compared=$(now)
first_read() {
	wait $first && grep -q '"path": *"rdma' /tmp/first || {
		cat /tmp/first
		return 1
	}
	echo "$(((compared - listening) * 10)) ms after it listened, which was $(((listening - killed) * 10)) ms after the kill"
}
check "a new life at the same address is read" first_read
check "a life at the same address is read at once" over rdma 4MiB 16 77 read
kill $server
wait $server 2>/dev/null
