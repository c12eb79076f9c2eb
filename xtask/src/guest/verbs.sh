# Verbs over emulated RoCE: each side's devices by themselves, then the system's own check between the two.
"$verbs_check" rxe0 rxe1
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
