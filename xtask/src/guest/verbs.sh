# Verbs over emulated RoCE: each side's devices by themselves, then the system's own check between the two.
objects() { # how much of everything the kernel has for this side's devices
	rdma resource show | grep -w -e rxe0 -e rxe1
}
before=$(objects)
"$verbs_check" rxe0 rxe1
left() {
	after=$(objects)
	[ "$before" = "$after" ] && echo "as before" && return
	echo "before: $before; after: $after"
	return 1
}
check "kernel objects" left
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
	tries=0
	# The server is there when its port is.
	until peer ss -ltn | grep -q :18515 || [ $tries = 100 ]; do
		sleep 0.2
		tries=$((tries + 1))
	done
	ibv_rc_pingpong -d rxe0 -g 1 -n 20 10.78.0.2 | tail -n 1 && wait
}
check "ping-pong between the two sides" pingpong
