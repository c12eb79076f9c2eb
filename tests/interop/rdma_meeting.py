"""The reference engine and ours over RDMA, between the two sides of the guest, each as target and as initiator.

    rdma_meeting.py TE VENV_PYTHON

The target runs in the network namespace `peer`, the initiator beside this program. Prints a line for each check, which
begins with `ok` or `not ok`.
"""

import json
import os
import subprocess
import sys
import time

te, python = sys.argv[1:3]
peer_script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference_target.py")
SIZE = 16 << 20
NEAR, FAR = "10.78.0.1", "10.78.0.2"
# The link without RDMA carries handshakes; each rail of one side reaches the same rail of the other.
RAILS = {
    1: (["rxe0"], ["rxep0"]),
    2: (["rxe0", "rxe1"], ["rxep0", "rxep1"]),
}


def affinity(own, other):
    return ";".join(f"{a}={b}" for a, b in zip(own, other))


class Program:
    """A program that says JSON lines, in the namespace of the far side or not."""

    def __init__(self, words, far, environment=None):
        words = (["ip", "netns", "exec", "peer"] if far else []) + words
        self.log = open(f"/tmp/{os.path.basename(words[-1])}-{time.monotonic_ns()}.log", "w+")
        everything = {**os.environ, "MC_GID_INDEX": "1", **(environment or {})}
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=everything
        )

    def line(self):
        """The next JSON object it says."""
        for text in self.process.stdout:
            if text.startswith("{"):
                return json.loads(text)
        raise RuntimeError("it ended: " + self.said())

    def said(self):
        """The end of what it said besides."""
        self.log.seek(0)
        return self.log.read()[-600:].replace("\n", " | ")

    def ask(self, **command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        answer = self.line()
        if not answer.get("ok"):
            raise RuntimeError(f"{command}: {answer}; {self.said()}")
        return answer

    def stop(self):
        self.process.kill()
        self.process.wait()


def reference(host, devices, map_text, far, seed=None):
    words = [python, peer_script, "--name", host, "--size", str(SIZE), "--protocol", "rdma"]
    words += ["--devices", ",".join(devices)] + (["--seed", str(seed)] if seed is not None else [])
    environment = {"PYTHONUNBUFFERED": "1"}
    if len(devices) > 1:
        environment.update(MC_ENABLE_HCA_PEER_AFFINITY="1", MC_NIC_PEER_AFFINITY=map_text)
    return Program(words, far, environment)


def ours(words, devices, map_text, far):
    settings = ["--set", "transports=rdma", "--set", "rdma.nics=" + ",".join(devices)]
    settings += ["--set", "rdma.rail_map=" + map_text]
    return Program([te] + words + settings + ["--json"], far)


failed = False


def check(name, call):
    global failed
    began = time.monotonic()
    try:
        call()
        print(f"ok {name}: {time.monotonic() - began:.1f} s", flush=True)
    except Exception as error:  # whatever is wrong, the other checks go on
        failed = True
        print(f"not ok {name}: {error}", flush=True)


def good(answer):
    if not answer.get("ok"):
        raise RuntimeError(str(answer))
    return answer


def ours_to_reference(own, other):
    target = reference(FAR, other, affinity(other, own), True, seed=3)
    try:
        place = good(target.line())
        address = place["buffers"][0]["addr"]
        for size, batch in [(4096, 1), (SIZE, 1), (SIZE, 16)]:
            for op in ["write", "read"]:
                words = ["check", "--peer", place["segment"], "--addr", hex(address), "--size", str(size)]
                words += ["--batch", str(batch), "--seed", "9", "--op", op, "--set", f"advertise={NEAR}"]
                run = ours(words, own, affinity(own, other), False)
                good(run.line())
                run.stop()
                if op == "write":
                    target.ask(do="check", length=size, seed=9)
        target.ask(do="ping")
    finally:
        target.stop()


def reference_to_ours(own, other):
    words = ["serve", "--name", FAR, "--size", str(SIZE), "--pattern", "5"]
    target = ours(words, other, affinity(other, own), True)
    initiator = None
    try:
        place = target.line()
        address = place["buffers"][0]["addr"]
        initiator = reference(NEAR, own, affinity(own, other), False)
        good(initiator.line())
        there = {"segment": place["segment"], "addr": address}
        initiator.ask(do="read", length=SIZE, seed=5, **there)
        for size, batch in [(4096, 1), (SIZE, 1), (SIZE, 16)]:
            initiator.ask(do="write", length=size, seed=7, blocks=batch, **there)
            initiator.ask(do="read", length=size, seed=7, expect_blocks=batch, **there)
        if target.process.poll() is not None:
            raise RuntimeError("te serve is gone")
    finally:
        target.stop()
        if initiator:
            initiator.stop()


for count, (own, other) in RAILS.items():
    name = "one NIC" if count == 1 else "two NICs"
    check(f"te to the reference, {name}", lambda: ours_to_reference(own, other))
    check(f"the reference to te, {name}", lambda: reference_to_ours(own, other))
sys.exit(1 if failed else 0)
