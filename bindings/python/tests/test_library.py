"""Finding the library, refusing the wrong one, and what its statuses become."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from libcarry import _library

PACKAGE = Path(_library.__file__).parent


class Fake:
    """A loaded library that only knows its version."""

    class Version:
        def __init__(self, text: bytes) -> None:
            self.text = text

        def __call__(self) -> bytes:
            return self.text

    def __init__(self, version: bytes) -> None:
        self.carry_version = Fake.Version(version)


def import_with(library: str) -> str:
    """What `import libcarry` says in a fresh process where CARRY_LIBRARY is this."""
    environment = {**os.environ, "CARRY_LIBRARY": library, "PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, "-c", "import libcarry"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(_library, "_find", lambda: (Fake(b"9.8.7"), "/somewhere/libcarry.so"))
    with pytest.raises(ImportError, match=r"/somewhere/libcarry.so is Carry 9.8.7 and this package is"):
        _library.load()


def test_this_version_without_the_functions_is_refused(monkeypatch):
    monkeypatch.setattr(_library, "_find", lambda: (Fake(_library.__version__.encode()), "libcarry.so"))
    with pytest.raises(ImportError, match="has no function carry_status_text"):
        _library.load()


def test_another_version_is_refused_when_imported(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler here to make a library of another version")
    source, library = tmp_path / "fake.c", tmp_path / "libfake.so"
    source.write_text('const char *carry_version(void) { return "0.0.9"; }\n')
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    said = import_with(str(library))
    assert said.startswith("ImportError:") and "is Carry 0.0.9" in said


def test_a_file_that_is_missing_or_no_library_is_refused(tmp_path):
    missing = tmp_path / "libcarry.so"
    assert "could not be loaded" in import_with(str(missing))
    missing.write_text("not a library")
    assert "could not be loaded" in import_with(str(missing))


def test_a_library_of_something_else_is_refused():
    libc = "libc.so.6" if sys.platform == "linux" else ctypes.util.find_library("c")
    assert "is not Carry's library" in import_with(libc)


def test_the_real_one_is_taken_where_asked():
    asked = os.environ.get("CARRY_LIBRARY", str(PACKAGE / _library.FILE_NAME))
    assert import_with(asked) == ""


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("EARGUMENT", ValueError),
        ("ESHAPE", ValueError),
        ("EDTYPE", ValueError),
        ("ESTRIDE", ValueError),
        ("EALIGN", ValueError),
        ("ESIZE", ValueError),
        ("ENOTFOUND", ValueError),
        ("EMEMORY", MemoryError),
        ("EUNSUPPORTED", NotImplementedError),
        ("EDEVICE", RuntimeError),
        ("EWORKSPACE", RuntimeError),
        ("ERANGE", RuntimeError),
    ],
)
def test_statuses_become_exceptions_with_the_sentence(status, kind):
    with pytest.raises(kind, match="seven words") as raised:
        _library.fail(_library.s.STATUSES.index(status), "seven words")
    assert type(raised.value) is kind


def test_a_status_that_is_not_known_still_raises():
    with pytest.raises(RuntimeError, match="status 99"):
        _library.fail(99, "")
