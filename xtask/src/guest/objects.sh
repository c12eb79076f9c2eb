# What the kernel has for the rails, from now on: a suite that has ended leaves nothing of it.
rdma_objects() {
	rdma resource show | grep -w -e rxe0 -e rxe1 -e rxep0 -e rxep1
}
rdma_before=$(rdma_objects)
rdma_left() {
	rdma_after=$(rdma_objects)
	[ -n "$rdma_before" ] && [ "$rdma_before" = "$rdma_after" ] && echo "as before:" $rdma_after && return
	echo "before: $rdma_before; after: $rdma_after"
	return 1
}
