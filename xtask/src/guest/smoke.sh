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
over_tcp() { # what is written to the target's disk is read again, past every cache
	nvme connect -t tcp -a 127.0.0.1 -s 4420 -n testbed || return
	tries=0
	# The machine's own disk is the first.
	until disk=$(ls /dev/nvme*n1 | grep -vx /dev/nvme0n1) || [ $tries = 50 ]; do
		sleep 0.2
		tries=$((tries + 1))
	done
	head -c 1048576 /dev/urandom >/tmp/written
	dd if=/tmp/written of="$disk" bs=64k oflag=direct status=none || return
	dd if="$disk" of=/tmp/read bs=64k count=16 iflag=direct status=none || return
	cmp /tmp/written /tmp/read || return
	nvme disconnect -n testbed >/dev/null && echo "1 MiB on $disk"
}
disk() {
	lsblk -dbno SIZE /dev/nvme0n1 | grep -qx 67108864 && echo "/dev/nvme0n1"
}
persistent() {
	ndctl list -R | grep -q '"size":268435456' && ls /dev/pmem*
}
huge() {
	grep -q '^HugePages_Total: *16$' /proc/meminfo && echo 16
}
check "rails here" ports rxe0 rxe1
check "rails of the peer" ports rxep0 rxep1
check "address of a rail" address rxe0
check "control link" reaches ping -c 1 -W 10 10.78.0.2
check "control link from the peer" reaches peer ping -c 1 -W 10 10.78.0.1
check "rail as a network" reaches ping -c 1 -W 10 10.77.1.2
check "nvme target by tcp" target 127.0.0.1 tcp
check "nvme target by rdma" target 10.77.0.1 rdma
check "nvme disk" disk
check "nvme over tcp keeps bytes" over_tcp
check "persistent memory" persistent
check "huge pages" huge
check "memory behind cxl" daxctl list -d dax0.0
