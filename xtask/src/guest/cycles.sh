# A rail that goes down and comes up, again and again under requests, and that nothing of it is left.
"$rdma_check" cycles peer rxe0=rxep0 rxe1=rxep1 "$cycles"
check "kernel objects" rdma_left
