# The RDMA transport between the two sides: what it promises, then its rails, and that nothing of it is left.
"$rdma_check" contract peer rxe0=rxep0 rxe1=rxep1
"$rdma_check" rails peer rxe0=rxep0 rxe1=rxep1
check "kernel objects" rdma_left
