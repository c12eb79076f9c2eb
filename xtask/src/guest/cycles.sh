# A rail that goes down and comes up, again and again under requests, and that nothing of it is left.
rdma_objects() {
	rdma resource show | grep -w -e rxe0 -e rxe1 -e rxep0 -e rxep1
}
rdma_before=$(rdma_objects)
"$rdma_check" cycles peer rxe0=rxep0 rxe1=rxep1 "$cycles"
rdma_left() {
	rdma_after=$(rdma_objects)
	[ -n "$rdma_before" ] && [ "$rdma_before" = "$rdma_after" ] && echo "as before:" $rdma_after && return
	echo "before: $rdma_before; after: $rdma_after"
	return 1
}
check "kernel objects" rdma_left
