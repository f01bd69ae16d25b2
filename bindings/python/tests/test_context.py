"""Contexts: one a thread, forgotten in a forked child, remade when the number of threads changes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import libcarry
from libcarry import _context


def run_scan() -> float:
    A = np.full((1, 100, 4), 0.5, np.float32)
    return float(libcarry.scan(A, np.ones((1, 100, 4, 8), np.float32))[0, -1, 0, 0])


def test_each_thread_has_its_own_context_and_it_goes_with_the_thread():
    seen = []

    def work() -> None:
        assert run_scan() == 2.0
        seen.append(weakref.ref(_context.current()))

    mine = _context.current()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert len(seen) == 4 and all(reference() is None for reference in seen)
    assert _context.current() is mine


def test_threads_at_once_give_the_same_as_one_after_the_other():
    rng = np.random.default_rng(3)
    A = rng.uniform(0.8, 1.0, (2, 500, 8)).astype(np.float32)
    b = rng.standard_normal((2, 500, 8, 16)).astype(np.float32)
    expected = libcarry.scan(A, b, algorithm="chunkwise")
    results = []

    def work() -> None:
        for _ in range(5):
            results.append(libcarry.scan(A, b, algorithm="chunkwise"))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 15 and all((result == expected).all() for result in results)


def test_plans_are_made_once_and_the_oldest_go(monkeypatch):
    libcarry.release()
    context = _context.current()
    run_scan()
    run_scan()
    assert len(context.plans) == 1
    monkeypatch.setattr(_context, "_MAX_PLANS", 3)
    for steps in range(1, 8):
        libcarry.scan(np.ones((1, steps, 1), np.float32), np.ones((1, steps, 1, 1), np.float32))
    assert len(context.plans) == 3
    assert run_scan() == 2.0


def test_release_frees_and_the_next_call_works():
    run_scan()
    before = _context.current()
    libcarry.release()
    assert not before.finalizer.alive
    assert run_scan() == 2.0


def test_a_process_may_end_while_a_thread_is_inside_a_call():
    program = """
import threading, time, numpy as np, libcarry
A, b = np.ones((8, 4000, 16), np.float32), np.ones((8, 4000, 16, 16), np.float32)
def forever():
    while True: libcarry.scan(A, b)
threading.Thread(target=forever, daemon=True).start()
libcarry.scan(A[:, :10], b[:, :10])
time.sleep(0.2)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(libcarry.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("threads", [-1, 1025, 2.5, "two"])
def test_numbers_of_threads_that_cannot_be_are_refused(threads):
    with pytest.raises(ValueError, match="set_threads"):
        libcarry.set_threads(threads)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_makes_its_own_context():
    run_scan()
    child = os.fork()
    if child == 0:
        # A hang here would be the parent's worker threads being waited for: SIGALRM ends it.
        import signal

        signal.alarm(30)
        os._exit(0 if run_scan() == 2.0 and libcarry.release() is None else 1)
    assert os.waitpid(child, 0)[1] == 0
