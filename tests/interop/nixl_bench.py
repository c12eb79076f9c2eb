#!/usr/bin/env python3
"""How fast NIXL moves host memory between two processes of this host.

    nixl_bench.py tcp|shm write|read BLOCK BATCH SECONDS

One agent on each side with its UCX backend. A transfer of BATCH blocks is posted, polled until it is done, and posted
again. At the far side the blocks lie in the opposite order, so that they stay as many. Prints a JSON line with gigabytes
(1e9 bytes) per second.
"""
import base64
import json
import os
import subprocess
import sys
import time

way, op, block, batch, seconds = sys.argv[1:6]
block, batch, seconds = int(block), int(batch), float(seconds)
size = block * batch
# Before the library is loaded.
os.environ.update(UCX_TLS=f"{way},self", UCX_NET_DEVICES="lo", UCX_WARN_UNUSED_ENV_VARS="n", NIXL_LOG_LEVEL="ERROR")

import numpy  # noqa: E402
from nixl_cu12._api import nixl_agent, nixl_agent_config  # noqa: E402


def start(name):
    """An agent, and memory that is touched and registered with it."""
    agent = nixl_agent(name, nixl_agent_config(backends=[]))
    # Over shared memory alone no endpoint can tell that a peer has failed, so that must not be asked for.
    agent.create_backend("UCX", {"ucx_error_handling_mode": "none"} if way == "shm" else {})
    memory = numpy.full(size, 1, dtype=numpy.uint8)
    agent.register_memory([(memory.ctypes.data, size, 0, "")], "DRAM")
    return agent, memory


def far_side():
    agent, memory = start("far")
    print(base64.b64encode(agent.get_agent_metadata()).decode(), memory.ctypes.data, flush=True)
    agent.add_remote_agent(base64.b64decode(sys.stdin.readline()))
    print("met", flush=True)
    sys.stdin.read()


def near_side():
    far = subprocess.Popen([sys.executable, *sys.argv, "far"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        metadata, address = far.stdout.readline().split()
        agent, memory = start("near")
        name = agent.add_remote_agent(base64.b64decode(metadata))
        far.stdin.write(base64.b64encode(agent.get_agent_metadata()).decode() + "\n")
        far.stdin.flush()
        far.stdout.readline()
        here = [(memory.ctypes.data + i * block, block, 0) for i in range(batch)]
        there = [(int(address) + (batch - 1 - i) * block, block, 0) for i in range(batch)]
        name = name.decode() if isinstance(name, bytes) else name
        transfer = agent.initialize_xfer(
            op.upper(), agent.get_xfer_descs(here, "DRAM"), agent.get_xfer_descs(there, "DRAM"), name, b""
        )

        def once():
            state = agent.transfer(transfer)
            while state == "PROC":
                state = agent.check_xfer_state(transfer)
            if state != "DONE":
                raise RuntimeError(f"a transfer ended as {state}")

        for _ in range(20):
            once()
        moved, began = 0, time.perf_counter()
        while (took := time.perf_counter() - began) < seconds:
            once()
            moved += size
        print(json.dumps({"gigabytes_per_second": moved / took / 1e9}))
    finally:
        far.stdin.close()
        far.wait(10)


far_side() if sys.argv[6:] == ["far"] else near_side()
