# Does the guest have what it was asked for?
ports() { # ports DEVICE..: each is active
	for device; do
		ibv_devinfo -d "$device" | grep -q PORT_ACTIVE || {
			echo "$device is not active"
			return 1
		}
	done
	echo "$* active"
}
address() { # address DEVICE: the IPv4 address at index 1
	cat "/sys/class/infiniband/$1/ports/1/gids/1"
}
target() { # target ADDRESS TRANSPORT: is it discovered?
	nvme discover -t "$2" -a "$1" -s 4420 | grep -q 'subnqn: *testbed' && echo "testbed by $2"
}
reaches() { # reaches [peer] ping .. ADDRESS
	"$@" >/dev/null && echo "reached"
}
check "rails here" ports rxe0 rxe1
check "rails of the peer" ports rxep0 rxep1
check "address of a rail" address rxe0
check "control link" reaches ping -c 1 -W 10 10.78.0.2
check "control link from the peer" reaches peer ping -c 1 -W 10 10.78.0.1
check "rail as a network" reaches ping -c 1 -W 10 10.77.1.2
check "nvme target by tcp" target 127.0.0.1 tcp
check "nvme target by rdma" target 10.77.0.1 rdma
check "memory behind cxl" daxctl list -d dax0.0
