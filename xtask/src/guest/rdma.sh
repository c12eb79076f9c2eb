# The RDMA transport between the two sides: what it promises, then its rails, and that nothing of it is left.
rdma_objects() {
	rdma resource show | grep -w -e rxe0 -e rxe1 -e rxep0 -e rxep1
}
rdma_before=$(rdma_objects)
"$rdma_check" contract peer rxe0=rxep0 rxe1=rxep1
"$rdma_check" rails peer rxe0=rxep0 rxe1=rxep1
rdma_left() {
	rdma_after=$(rdma_objects)
	[ -n "$rdma_before" ] && [ "$rdma_before" = "$rdma_after" ] && echo "as before:" $rdma_after && return
	echo "before: $rdma_before; after: $rdma_after"
	return 1
}
check "kernel objects" rdma_left
