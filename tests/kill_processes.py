#!/usr/bin/env python3
"""Ranks that are processes of one machine, one of which is killed (-9) or stopped at a random moment: the others end with
an error message, no process is left, and the GPU's memory is free afterwards.

Usage: kill_processes.py RANKS_WORKER [--kills 8] [--jobs 1] [--device cpu|gpu] [--kinds ipc,staged] [--seed N]
Nothing but Python's own library. Works on groups of four ranks, --jobs groups at a time."""
import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

RANKS = 4
DEADLINE = 3.0
EARLY = "ranks ended before one was disturbed"  # on a busy machine they may miss each other
MOST = 120.0  # seconds to start or to end, far beyond what a busy machine takes
TOLD = re.compile(r"told after ([0-9.]+) s: E[A-Z]+: [a-z-]+: .*\([0-9.]+ s waited\)")


class Rank:
    """A process and its output lines."""

    def __init__(self, number, folder, arguments):
        environment = dict(os.environ, CARRY_RANK=str(number), CARRY_RANKS=str(RANKS), CARRY_MEET=folder)
        environment["ASAN_OPTIONS"] = "detect_leaks=0:allocator_may_return_null=1"
        self.process = subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True)
        self.lines = []
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if "is process" in line:
                self.ready.set()
        self.ready.set()


def survivors_are_right(ranks, victim):
    for number, rank in enumerate(ranks):
        if number == victim:
            continue
        told = [TOLD.search(line) for line in rank.lines if line.startswith("told")]
        if len(told) != 1 or told[0] is None:
            return f"rank {number} did not say operation, rank and seconds once: {rank.lines}"
        if rank.process.returncode != 1:
            return f"rank {number} ended with {rank.process.returncode}"
    return None


def disturb(arguments, victim, delay, how):
    """Runs one group. Returns (seconds until all others had ended, or None; the fault, EARLY or None)."""
    folder = tempfile.mkdtemp(prefix="kill-")
    ranks = [Rank(number, folder, arguments) for number in range(RANKS)]
    wrong, seconds = None, None
    try:
        for rank in ranks:
            if not rank.ready.wait(MOST) or not any("is process" in line for line in rank.lines):
                return None, f"a rank did not start: {rank.lines}"
        time.sleep(delay)
        if any(rank.process.poll() is not None for rank in ranks):
            return None, EARLY
        ranks[victim].process.send_signal(how)
        began = time.monotonic()
        for number, rank in enumerate(ranks):
            if number != victim:
                try:
                    rank.process.wait(max(0.1, MOST - (time.monotonic() - began)))
                except subprocess.TimeoutExpired:
                    wrong = f"rank {number} has not ended after {MOST} s: {rank.lines}"
        seconds = time.monotonic() - began
    finally:
        for rank in ranks:
            if rank.process.poll() is None:
                rank.process.kill()
            rank.process.wait()
            rank.reader.join(5)
        shutil.rmtree(folder, ignore_errors=True)
    return seconds, wrong or survivors_are_right(ranks, victim)


def used_memory():
    """Used MiB of the first GPU, or None."""
    try:
        text = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, timeout=120, check=True).stdout
        return int(text.split()[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def memory_comes_back(before):
    """Waits up to 60 s for the driver to free the memory of a killed process. Returns the used MiB."""
    for _ in range(300):
        after = used_memory()
        if after is None or after <= before:
            return after
        time.sleep(0.2)
    return after


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("worker")
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--kinds", default="ipc,staged")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=1e9, help="no further groups are started after so many")
    given = parser.parse_args()
    rng = random.Random(given.seed)
    kinds = given.kinds.split(",")
    before = used_memory() if given.device == "gpu" else None
    print(f"seed {given.seed}, {RANKS} ranks a group, deadline {DEADLINE} s, {given.device}")
    cases = []
    for number in range(given.kills):
        kind = [given.device] + ([kinds[number % len(kinds)]] if given.device == "gpu" else [])
        how = signal.SIGSTOP if number // 2 % 3 == 2 else signal.SIGKILL
        cases.append((kind, rng.randrange(RANKS), rng.random() * 0.7, how))
    start = time.monotonic()

    def one(case):
        kind, victim, delay, how = case
        if time.monotonic() - start > given.seconds:
            return None
        deadline, result = DEADLINE, (None, EARLY)
        while result[1] == EARLY and deadline < 100:
            result = disturb([given.worker, str(deadline), *kind], victim, delay, how)
            deadline *= 2
        return case, result

    with ThreadPoolExecutor(given.jobs) as pool:
        results = [result for result in pool.map(one, cases) if result is not None]
    failures = 0
    for (kind, victim, delay, how), (_, wrong) in results:
        if wrong is not None:
            failures += 1
            print(f"FAILED: {how.name} of rank {victim} after {delay:.3f} s, {' '.join(kind)}: {wrong}")
    for kind in kinds if given.device == "gpu" else ["cpu"]:
        for how in (signal.SIGKILL, signal.SIGSTOP):
            times = sorted(seconds for (k, _, _, h), (seconds, _) in results
                           if k[-1] == kind and h == how and seconds is not None)
            if times:
                print(f"{kind}, {how.name}: {len(times)}, others ended after {times[len(times) // 2]:.2f} s (median), "
                      f"{times[-1]:.2f} s (latest)")
    print(f"{len(results)} disturbed, {failures} wrong, {time.monotonic() - start:.0f} s")
    if before is not None:
        after = memory_comes_back(before)
        print(f"memory of the GPU in use: {before} MiB before, {after} MiB after")
        failures += after is None or after > before
    return failures > 0 or not results


if __name__ == "__main__":
    sys.exit(main())
