#!/usr/bin/env python3
"""A rank that speaks nonsense: this script plays rank 1 of two and sends headers that no build of Carry would send. Rank 0
must end with an error message, not by a signal and not by its deadline. Usage: hostile_rank.py RANKS_WORKER"""
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time

HEADERS = {
    "a length that overflows": struct.pack("=Qii", 2**64 - 8, 5, 0),
    "a length beyond any memory": struct.pack("=Qii", 2**63, 5, 0),
    "a reserved field that is set": struct.pack("=Qii", 8, 5, 7),
}


def try_header(worker, header):
    """What rank 0 printed and its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, CARRY_RANK="0", CARRY_RANKS="2", CARRY_MEET=folder, CARRY_WISDOM="none")
        rank0 = subprocess.Popen([worker, "2"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        line = socket.socket(socket.AF_UNIX)
        started = time.monotonic()
        while time.monotonic() < started + 30:
            try:
                line.connect(folder + "/0.0")
                break
            except OSError:
                time.sleep(0.01)
        line.sendall(struct.pack("=i", 1) + header + b"\0" * 65536)
        try:
            return rank0.communicate(timeout=30)[0], rank0.returncode
        except subprocess.TimeoutExpired:
            rank0.kill()
            return rank0.communicate()[0] + "(it waited for more)", None
        finally:
            line.close()


def main():
    bad = 0
    for name, header in HEADERS.items():
        printed, code = try_header(sys.argv[1], header)
        if code != 1 or "malformed header" not in printed:
            print(f"FAILED: {name}: exit {code}: {printed}")
            bad += 1
    sys.exit(bad > 0)


main()
