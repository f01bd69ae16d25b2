#!/usr/bin/env python3
"""A rank that speaks nonsense: this script plays rank 1 of two and sends headers that no build of Carry would send. Rank 0
must end with an error message, not by a signal and not by its deadline; likewise when rank 1 is of another version or
build. A caller that says nothing does not keep ranks
from meeting. A rank that is stopped does not outlive the process that started it. Usage: hostile_rank.py RANKS_WORKER CARRY"""
import os
import signal
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


def connected(folder):
    """Connects to rank 0 once it listens."""
    line = socket.socket(socket.AF_UNIX)
    started = time.monotonic()
    while time.monotonic() < started + 120:
        try:
            line.connect(folder + "/0.0")
            break
        except OSError:
            time.sleep(0.01)
    return line


def try_silence(worker):
    """Three callers send nothing, then rank 1 connects. Returns the fault, or None."""
    with tempfile.TemporaryDirectory() as folder:
        ranks, lines = [], []
        for rank in range(2):
            environment = dict(os.environ, CARRY_RANK=str(rank), CARRY_RANKS="2", CARRY_MEET=folder, CARRY_WISDOM="none")
            ranks.append(subprocess.Popen([worker, "600"], env=environment, stdout=subprocess.PIPE,
                                          stderr=subprocess.STDOUT, text=True))
            if rank == 0:
                lines = [connected(folder) for _ in range(3)]
        started = time.monotonic()
        said = ranks[0].stdout.readline()  # once they have met
        took = time.monotonic() - started
        for rank in ranks:
            rank.kill()
            rank.communicate()
        for line in lines:
            line.close()
        return None if "is process" in said and took < 300 else f"after {took:.1f} s rank 0 said '{said}'"


def has_become_a_rank(process):
    """True if it runs carry as a rank and is no longer a copy of the process that started it."""
    try:
        with open(f"/proc/{process}/environ", "rb") as environment:
            return b"CARRY_RANK=" in environment.read()
    except OSError:
        return False


def is_running(process):
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def try_stopped(carry, how, folder):
    """Stops a rank and then sends a signal to the process that was started first. Returns the fault, or None. A killed
    process leaves the folder where its ranks met, inside `folder`."""
    typed = subprocess.Popen([carry, "--processes", "2", "bench", "--unchecked", "--seconds", "600", "scan:dense:t4096:n32"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             env=dict(os.environ, CARRY_WISDOM="none", TMPDIR=folder))
    ranks = []
    started = time.monotonic()
    while len(ranks) < 2 and time.monotonic() < started + 120:
        with open(f"/proc/{typed.pid}/task/{typed.pid}/children", encoding="utf-8") as children:
            ranks = [int(child) for child in children.read().split()]
        time.sleep(0.05)
    while not all(has_become_a_rank(rank) for rank in ranks) and time.monotonic() < started + 120:
        time.sleep(0.05)
    os.kill(ranks[-1], signal.SIGSTOP)
    typed.send_signal(how)
    started = time.monotonic()
    while any(is_running(process) for process in ranks + [typed.pid]) and time.monotonic() < started + 300:
        typed.poll()
        time.sleep(0.05)
    left = [process for process in ranks if is_running(process)]
    for process in left:
        os.kill(process, signal.SIGKILL)
    typed.kill()
    typed.wait()
    return f"{len(left)} of {len(ranks)} ranks are left" if left or len(ranks) != 2 else None


def try_header(worker, header):
    """Sends the header as rank 1. Returns the output of rank 0 and its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, CARRY_RANK="0", CARRY_RANKS="2", CARRY_MEET=folder, CARRY_WISDOM="none")
        rank0 = subprocess.Popen([worker, "300"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        line = connected(folder)
        line.sendall(struct.pack("=i", 1) + header + b"\0" * 65536)
        try:
            return rank0.communicate(timeout=300)[0], rank0.returncode
        except subprocess.TimeoutExpired:
            rank0.kill()
            return rank0.communicate()[0] + "(it waited for more)", None
        finally:
            line.close()


def first_words(worker):
    """The first bytes of rank 1: its number, a header, and the record that ranks compare."""
    with tempfile.TemporaryDirectory() as folder:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(folder + "/0.0")
        listening.listen(1)
        environment = dict(os.environ, CARRY_RANK="1", CARRY_RANKS="2", CARRY_MEET=folder, CARRY_WISDOM="none")
        rank1 = subprocess.Popen([worker, "300"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        listening.settimeout(300)
        line, _ = listening.accept()
        line.settimeout(300)
        words = b""
        while len(words) < 20 or len(words) < 20 + struct.unpack_from("=Q", words, 4)[0]:
            words += line.recv(65536)
        rank1.kill()
        rank1.wait()
        line.close()
        listening.close()
        return words


def try_stranger(worker, words, place):
    """Changes one byte of rank 1's record, at `place`. Returns the output of rank 0 and its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, CARRY_RANK="0", CARRY_RANKS="2", CARRY_MEET=folder, CARRY_WISDOM="none")
        rank0 = subprocess.Popen([worker, "300"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        line = connected(folder)
        line.sendall(words[:20 + place] + b"~" + words[21 + place:])
        try:
            return rank0.communicate(timeout=300)[0], rank0.returncode
        except subprocess.TimeoutExpired:
            rank0.kill()
            return rank0.communicate()[0] + "(it waited for more)", None
        finally:
            line.close()


def main():
    bad = 0
    words = first_words(sys.argv[1])
    for what, place in (("version", 0), ("build", 64)):
        printed, code = try_stranger(sys.argv[1], words, place)
        if code != 1 or f"the ranks differ: {what}: rank 0 has '" not in printed or f"rank 1 has {what} '~" not in printed:
            print(f"FAILED: a rank of another {what}: exit {code}: {printed}")
            bad += 1
    for name, header in HEADERS.items():
        printed, code = try_header(sys.argv[1], header)
        if code != 1 or "malformed header" not in printed:
            print(f"FAILED: {name}: exit {code}: {printed}")
            bad += 1
    with tempfile.TemporaryDirectory() as folder:
        for name, wrong in (("a silent caller", try_silence(sys.argv[1])),
                            ("a stopped rank, its parent killed", try_stopped(sys.argv[2], signal.SIGKILL, folder)),
                            ("a stopped rank, its parent told to end", try_stopped(sys.argv[2], signal.SIGTERM, folder))):
            if wrong is not None:
                print(f"FAILED: {name}: {wrong}")
                bad += 1
    sys.exit(bad > 0)


main()
