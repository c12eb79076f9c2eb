# Verbs over emulated RoCE: each side's devices by themselves, then the system's own check between the two.
objects() { # how much of everything the kernel has for this side's devices
	rdma resource show | grep -w -e rxe0 -e rxe1
}
before=$(objects)
"$verbs_check" rxe0 rxe1
left() {
	after=$(objects)
	[ -n "$before" ] && [ "$before" = "$after" ] && echo "as before:" $after && return
	echo "before: $before; after: $after"
	return 1
}
check "kernel objects" left
# Killed while it has everything open: the kernel cleans up.
"$verbs_check" --hold rxe0 >/tmp/held &
holder=$!
tries=0
until grep -q waiting /tmp/held || [ $tries = 100 ]; do
	sleep 0.2
	tries=$((tries + 1))
done
held=$(objects)
kill -KILL $holder
wait $holder 2>/dev/null
killed() {
	[ "$held" != "$before" ] || {
		echo "nothing was held"
		return 1
	}
	left
}
check "kernel objects after a kill" killed
event() { # event KIND STATE: the device tells when its link goes there
	"$verbs_check" --event rxe1 "$1" >/tmp/event &
	tries=0
	until grep -q waiting /tmp/event || [ $tries = 100 ]; do
		sleep 0.2
		tries=$((tries + 1))
	done
	ip link set eth1 "$2" && wait $! && tail -n 1 /tmp/event
}
check "link down" event PORT_ERR down
check "link up" event PORT_ACTIVE up
peer "$verbs_check" rxep0
pingpong() {
	peer ibv_rc_pingpong -d rxep0 -g 1 -n 20 >/dev/null &
	server=$!
	tries=0
	# The server is there when its port is.
	until peer ss -ltn | grep -q :18515 || [ $tries = 100 ]; do
		sleep 0.2
		tries=$((tries + 1))
	done
	said=$(ibv_rc_pingpong -d rxe0 -g 1 -n 20 10.78.0.2) && wait $server && echo "$said" | tail -n 1
}
check "ping-pong between the two sides" pingpong
