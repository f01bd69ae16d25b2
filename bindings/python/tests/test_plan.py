"""libcarry.plan and libcarry.available."""

from __future__ import annotations

import pytest

import libcarry


@pytest.mark.parametrize("what", ["scans", "deltas", "kernels", "devices", "problems", "rates"])
def test_lists_have_names_and_what_they_are(what):
    entries = libcarry.available(what)
    assert entries and all(entry.name and entry.about for entry in entries)


def test_lists_know_what_must_be_there():
    assert "sequential" in dict(libcarry.available("scans"))
    assert {"recurrent", "chunk64"} <= set(dict(libcarry.available("deltas")))
    assert "plain" in dict(libcarry.available("kernels"))
    assert libcarry.available("devices")[0].name == "cpu"


def test_plan_says_what_would_run():
    text = libcarry.plan("scan:dense:f32:t1024:n32", "delta:t256:h2:hv4:k64:v32")
    first, second = text.splitlines()
    assert first.startswith("scan:dense:f32:t1024:n32  ")
    assert second.startswith("delta:t256:h2:hv4:k64:v32  ")
    assert "cyclic" in libcarry.plan("scan:diagonal:b2:t64:algo=cyclic")
    assert "chunk32" in libcarry.plan("delta:f16:t256:algo=chunk32")


@pytest.mark.parametrize(
    ("problem", "word"),
    [
        ("scan:t10", "diagonal or dense"),
        ("scan:dense:q3", "'q'"),
        ("scan:dense:t3:t4", "twice"),
        ("scan:dense:t0", "'t0'"),
        ("scan:dense::t3", "between two colons"),
        ("scan:dens", "did you mean 'dense'"),
        ("scan:dense:fp16", "did you mean 'f16'"),
        ("scan:dense:colour=red", "colour=red"),
        ("scan:diagonal:algo=fastest", "fastest"),
        ("delta:k300", "300"),
        ("delta:h3:hv4", "4"),
        ("sum:t3", "sum"),
    ],
)
def test_plan_refuses_by_a_sentence(problem, word):
    with pytest.raises(ValueError) as refusal:
        libcarry.plan(problem)
    assert word in str(refusal.value)


def test_plan_needs_a_problem_and_list_a_name():
    with pytest.raises(ValueError, match="needs a problem"):
        libcarry.plan()
    with pytest.raises(ValueError, match="no list of 'cakes'"):
        libcarry.available("cakes")
