"""One engine of the reference implementation, driven by JSON lines.

`cargo xtask interop` starts this through reference_target.py and reference_initiator.py. Standard input carries
one JSON object per line with the member `do`; each is answered by exactly one JSON object on standard output.
Every answer has `ok`. The engine owns one registered buffer; offsets are bytes into it.

Bytes are checked against a pattern: byte i = (i ^ i>>8 ^ i>>16 ^ seed) & 0xff, counted from the start of the
range. With `blocks` n > 1 the range is cut into n equal blocks that are laid out in reverse order.
"""

import argparse
import json
import sys
import time

import numpy as np
from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode

PAGE = 4096
PERIOD = 1 << 24  # the pattern uses 24 bits of the index


def base_pattern():
    i = np.arange(PERIOD, dtype=np.uint32)
    return ((i ^ (i >> 8) ^ (i >> 16)) & 0xFF).astype(np.uint8)


class Pattern:
    """The pattern of any length and seed, from one precomputed period."""

    def __init__(self):
        self.base = base_pattern()

    def of(self, length, seed, blocks=1):
        whole, rest = divmod(length, PERIOD)
        parts = [self.base] * whole + [self.base[:rest]]
        flat = np.concatenate(parts) ^ np.uint8(seed & 0xFF)
        if blocks > 1:
            flat = np.ascontiguousarray(flat.reshape(blocks, length // blocks)[::-1]).reshape(-1)
        return flat


class Peer:
    """The engine, its buffer and the commands on them."""

    def __init__(self, arguments):
        self.metadata = arguments.metadata
        self.name = arguments.name
        self.pattern = Pattern()
        self.engine = TransferEngine()
        code = self.engine.initialize(arguments.name, arguments.metadata, arguments.protocol, arguments.devices)
        if code != 0:
            raise RuntimeError(f"initialize failed with code {code}")
        self.storage = np.zeros(arguments.size + PAGE, dtype=np.uint8)
        skip = -self.storage.ctypes.data % PAGE
        self.buffer = self.storage[skip : skip + arguments.size]
        self.address = self.buffer.ctypes.data
        code = self.engine.register_memory(self.address, arguments.size)
        if code != 0:
            raise RuntimeError(f"register_memory failed with code {code}")
        if arguments.seed is not None:
            self.buffer[:] = self.pattern.of(arguments.size, arguments.seed)

    def hello(self):
        port = self.engine.get_rpc_port()
        p2p = self.metadata == "P2PHANDSHAKE"
        return {
            "ok": True,
            "segment": f"{self.name}:{port}" if p2p else self.name,
            "rpc_port": port,
            "buffers": [{"addr": self.address, "length": len(self.buffer)}],
        }

    def differs_at(self, offset, length, seed, blocks):
        """Index of the first byte that is not the pattern's, or None."""
        found = self.buffer[offset : offset + length]
        if len(found) != length:
            return len(found)
        wrong = np.flatnonzero(found != self.pattern.of(length, seed, blocks))
        return int(wrong[0]) if len(wrong) else None

    # Commands. The name of the method after do_ is the value of `do`.

    def do_ping(self, _):
        return {"ok": True}

    def do_fill(self, command):
        self.buffer[:] = self.pattern.of(len(self.buffer), command["seed"])
        return {"ok": True}

    def do_check(self, command):
        at = self.differs_at(command.get("offset", 0), command["length"], command["seed"], command.get("blocks", 1))
        return {"ok": at is None, "differs_at": at}

    def do_notifies(self, _):
        return {"ok": True, "notifies": [[n.name, n.msg] for n in self.engine.get_notifies()]}

    def do_write(self, command):
        """Write the pattern, in one piece or as a batch whose blocks land in reverse order."""
        length, blocks = command["length"], command.get("blocks", 1)
        self.buffer[:length] = self.pattern.of(length, command["seed"])
        code = self.transfer("write", command, length, blocks)
        return {"ok": code == 0, "code": code}

    def do_read(self, command):
        """Read and verify. `within` seconds allows for a peer whose writes are not acknowledged."""
        length, blocks, seed = command["length"], command.get("blocks", 1), command["seed"]
        expected_blocks = command.get("expect_blocks", 1)
        give_up = time.monotonic() + command.get("within", 0)
        while True:
            self.buffer[:length] = self.pattern.of(length, seed) ^ np.uint8(0xFF)
            code = self.transfer("read", command, length, blocks)
            at = self.differs_at(0, length, seed, expected_blocks) if code == 0 else None
            if code != 0 or at is None or time.monotonic() >= give_up:
                return {"ok": code == 0 and at is None, "code": code, "differs_at": at}
            time.sleep(0.02)

    def transfer(self, direction, command, length, blocks):
        segment, address = command["segment"], command["addr"]
        if blocks == 1:
            call = self.engine.transfer_sync_write if direction == "write" else self.engine.transfer_sync_read
            return call(segment, self.address, address, length)
        block = length // blocks
        local = [self.address + i * block for i in range(blocks)]
        remote = [address + (blocks - 1 - i) * block for i in range(blocks)]
        if direction == "write":
            call = self.engine.batch_transfer_sync_write
        else:
            call = self.engine.batch_transfer_sync_read
        return call(segment, local, remote, [block] * blocks)

    def do_notify(self, command):
        """A notification travels with a transfer: the first 64 bytes of the buffer."""
        code = self.engine.transfer_sync(
            command["segment"],
            self.address,
            command["addr"],
            64,
            TransferOpcode.Write,
            TransferNotify(command["name"], command["message"]),
        )
        return {"ok": code == 0, "code": code}

    def do_probe(self, command):
        code = self.engine.send_probe(command["segment"])
        return {"ok": code == 0, "code": code}

    def do_first_buffer(self, command):
        address = self.engine.get_first_buffer_address(command["segment"])
        return {"ok": bool(address), "addr": address}


def say(answer):
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--metadata", default="P2PHANDSHAKE")
    parser.add_argument("--name", default="127.0.0.1")
    parser.add_argument("--size", type=int, default=64 << 20)
    parser.add_argument("--protocol", default="tcp")
    parser.add_argument("--devices", default="", help="RDMA devices, separated by commas")
    parser.add_argument("--seed", type=int, default=None, help="fill the buffer with the pattern of this seed")
    peer = Peer(parser.parse_args())
    say(peer.hello())
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            command = json.loads(line)
            if command["do"] == "quit":
                say({"ok": True})
                return
            answer = getattr(peer, "do_" + command["do"])(command)
        except Exception as error:  # the driver decides what a failed command means
            answer = {"ok": False, "error": repr(error)}
        say(answer)
