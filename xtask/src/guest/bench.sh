# Ours beside perftest, one rail, taking turns. Each figure is a line: `figure OURS|THEIRS WHAT BLOCK VALUE`.
settings="--set transports=rdma --set rdma.nics=rxe0"
peer "$te" bench target --name 10.78.0.2 --size 64MiB --set transports=rdma --set rdma.nics=rxep0 --json >/tmp/target &
target=$!
tries=0
until grep -q segment /tmp/target || [ $tries = 100 ]; do
	sleep 0.2
	tries=$((tries + 1))
done
segment=$(tr -d '\n ' </tmp/target | sed 's/.*"segment":"\([^"]*\)".*/\1/')
theirs() { # theirs PROGRAM BLOCK OUTPUT OPTION..: the last word it prints
	program=$1 block=$2 output=$3
	shift 3
	peer "$program" -d rxep0 -x 1 -s "$block" -F "$@" >/dev/null 2>&1 &
	server=$!
	tries=0
	until peer ss -ltn | grep -q :18515 || [ $tries = 100 ]; do
		sleep 0.1
		tries=$((tries + 1))
	done
	"$program" -d rxe0 -x 1 -s "$block" -F "$@" --output="$output" 10.78.0.2 2>/dev/null | tr -s ' \n' '\n\n' | tail -n 1
	wait $server
}
ours() { # ours MEMBER WORK..: what the bench prints under that name
	member=$1
	shift
	"$te" bench "$@" --peer "$segment" --name 10.78.0.1 $settings --duration 2s --json | tr -d '\n ' |
		sed "s/.*\"$member\":\([0-9.e+-]*\).*/\1/"
}
small="--block 8 --batch 1 --area 64KiB"
for round in $(seq "$rounds"); do
	for op in write read; do
		for block in 65536 1048576; do
			echo "figure theirs $op $block $(theirs ib_${op}_bw $block bandwidth -D 2)"
			echo "figure ours $op $block $(ours gigabytes_per_second initiator --op $op --block $block --batch 16 --area 16MiB)"
		done
	done
	echo "figure theirs ping-pong 8 $(theirs ib_write_lat 8 latency -n 400)"
	echo "figure ours ping-pong 8 $(ours half_p50_us ping-pong)"
	echo "figure theirs read 8 $(theirs ib_read_lat 8 latency -n 400)"
	echo "figure ours read 8 $(ours batch_p50_us initiator --op read $small)"
	# One at a time, each with its completion: a rate, in bytes and in millions a second.
	echo "figure theirs write 8 $(theirs ib_write_bw 8 message_rate -t 1 -n 1000)"
	echo "figure ours write 8 $(ours gigabytes_per_second initiator --op write $small)"
done
kill $target
