#!/bin/busybox sh
# The first process of the guest, twice: from the initramfs it puts the host's files together, then, within these, it sets
# up what was asked for, runs the command and turns the machine off. It is not meant to be run anywhere else.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
told=/run/guest

if [ ! -e $told/config ]; then
	b=/bin/busybox
	root=/new
	p9=trans=virtio,version=9p2000.L,msize=524288
	$b mkdir -p /proc /sys /dev /host /over $root
	$b mount -t proc none /proc
	$b mount -t sysfs none /sys
	$b mount -t devtmpfs none /dev
	for module in virtio_pci virtio_console 9pnet_virtio 9p overlay configfs; do
		$b modprobe -q $module
	done
	# The host's files, and what is written over them in memory.
	$b mount -t 9p -o ro,cache=loose,$p9 host /host || echo "guest: the host's files are not there"
	$b mount -t tmpfs -o size=75% none /over
	$b mkdir /over/upper /over/work
	$b mount -t overlay -o lowerdir=/host,upperdir=/over/upper,workdir=/over/work none $root
	$b mount -t proc none $root/proc
	$b mount -t sysfs none $root/sys
	$b mount -t devtmpfs none $root/dev
	$b mount -t tmpfs none $root/run
	$b mkdir -p $root$told $root/dev/pts $root/dev/shm $root/dev/hugepages $root/usr/lib/modules
	$b mount -t devpts none $root/dev/pts
	$b mount -t tmpfs none $root/dev/shm
	$b mount -t hugetlbfs none $root/dev/hugepages
	$b mount -t configfs none $root/sys/kernel/config
	$b mount -t debugfs none $root/sys/kernel/debug
	$b mount -t cgroup2 none $root/sys/fs/cgroup
	$b mount -o bind /lib/modules $root/usr/lib/modules
	$b mount -t 9p -o $p9 told $root$told
	share=0
	[ ! -e $root$told/writable ] || while read -r folder; do
		$b mount -t 9p -o cache=mmap,$p9 share$share "$root$folder"
		share=$((share + 1))
	done <$root$told/writable
	$b cp /init /bin/busybox $root/run/
	exec $b chroot $root /bin/sh /run/init
fi

# Sets rails, huge, nvmet, nvme, cxl and pmem: numbers, 0 for none; sizes in bytes.
. $told/config
hostname guest
ip link set lo up
[ "$huge" = 0 ] || echo "$huge" >/proc/sys/vm/nr_hugepages

# Two hosts: this namespace and `peer`. Between them a link without RDMA for control and TCP, 10.78.0.1 and .2, and the
# rails, 10.77.RAIL.1 and .2, with a RoCE device at each end.
if [ "$rails" -gt 0 ]; then
	modprobe -a rdma_rxe ib_uverbs rdma_ucm
	ip netns add peer
	here="$told/here.$$" there="$told/there.$$"
	echo "link add mgmt type veth peer name mgmt netns peer
		addr add 10.78.0.1/24 dev mgmt
		link set mgmt up" >"$here"
	echo "link set lo up
		addr add 10.78.0.2/24 dev mgmt
		link set mgmt up" >"$there"
	rail=0
	while [ $rail -lt "$rails" ]; do
		echo "link add eth$rail mtu 9000 type veth peer name eth$rail mtu 9000 netns peer
			addr add 10.77.$rail.1/24 dev eth$rail
			link set eth$rail up" >>"$here"
		echo "addr add 10.77.$rail.2/24 dev eth$rail
			link set eth$rail up" >>"$there"
		rail=$((rail + 1))
	done
	ip -batch "$here"
	ip -n peer -batch "$there"
	rail=0
	while [ $rail -lt "$rails" ]; do
		rdma link add rxe$rail type rxe netdev eth$rail
		ip netns exec peer rdma link add rxep$rail type rxe netdev eth$rail
		rail=$((rail + 1))
	done
	printf '#!/bin/sh\nexec ip netns exec peer "$@"\n' >/usr/local/bin/peer
	chmod +x /usr/local/bin/peer
fi

# An NVMe-oF target with one namespace on a RAM disk, on TCP, loop and, with rails, RDMA. Connecting is the command's business.
if [ "$nvmet" -gt 0 ]; then
	modprobe brd rd_nr=1 rd_size=$((nvmet / 1024)) max_part=0
	modprobe -a nvmet nvmet-tcp nvme-tcp nvme-loop
	top=/sys/kernel/config/nvmet
	disk=$top/subsystems/testbed
	mkdir $disk $disk/namespaces/1
	echo 1 >$disk/attr_allow_any_host
	echo /dev/ram0 >$disk/namespaces/1/device_path
	echo 1 >$disk/namespaces/1/enable
	offer() { # offer NUMBER TRANSPORT [ADDRESS]
		port=$top/ports/$1
		mkdir $port
		echo "$2" >$port/addr_trtype
		if [ -n "${3-}" ]; then
			echo ipv4 >$port/addr_adrfam
			echo "$3" >$port/addr_traddr
			echo 4420 >$port/addr_trsvcid
		fi
		ln -s $disk $port/subsystems/testbed
	}
	offer 1 tcp 127.0.0.1
	offer 2 loop
	if [ "$rails" -gt 0 ]; then
		modprobe -a nvmet-rdma nvme-rdma
		offer 3 rdma 10.77.0.1
	fi
fi
[ "$nvme" = 0 ] || modprobe nvme

# CXL memory: one region over the whole device, made by hand, since the tools of the day make no regions of RAM, and given
# to device_dax: left to itself it becomes ordinary memory.
if [ "$cxl" -gt 0 ]; then
	modprobe -a cxl_acpi cxl_pci cxl_port cxl_mem cxl_pmem device_dax
	cd /sys/bus/cxl/devices || exit
	tries=0
	until [ -e endpoint2 ] || [ $tries = 100 ]; do
		sleep 0.1
		tries=$((tries + 1))
	done
	region=$(cat decoder0.0/create_ram_region)
	echo "$region" >decoder0.0/create_ram_region
	echo 256 >"$region/interleave_granularity"
	echo 1 >"$region/interleave_ways"
	echo "$cxl" >"$region/size"
	echo ram >decoder2.0/mode
	echo "$cxl" >decoder2.0/dpa_size
	echo decoder2.0 >"$region/target0"
	echo 1 >"$region/commit"
	echo "$region" >/sys/bus/cxl/drivers/cxl_region/bind
	modprobe dax_cxl
	echo dax0.0 >/sys/bus/dax/drivers/device_dax/new_id
fi
[ "$pmem" = 0 ] || modprobe -a nd_e820 nd_pmem dax_pmem device_dax

stty -F /dev/hvc0 raw -echo
cd /
setsid env -i PATH="$PATH" HOME=/root TERM=dumb LANG=C.UTF-8 \
	bash $told/command </dev/null >/dev/hvc0 2>&1
echo $? >$told/status
exec /run/busybox poweroff -f
