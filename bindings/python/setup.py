"""Builds libcarry with CMake and puts it inside the package, so that the wheel needs no compiler where it is installed.

    pip wheel bindings/python                      (or: python -m build bindings/python)
    CARRY_CUDA=1 pip wheel bindings/python         with the CUDA backend; needs nvcc
    CARRY_PREBUILT=FILE pip wheel bindings/python  around a library that was built before, also for another machine

The wheel's library stands alone: it is built without OpenBLAS, MPI and PCRE2, which the user may not have, and its tag,
manylinux_2_N, is that of the newest glibc whose functions it calls. With CUDA it has the runtime inside and looks for
the driver when it is first asked for GPUs, so that one wheel serves machines with and without one; its build tag is
1cuda. CARRY_CMAKE_ARGS adds arguments for CMake, for example -DCARRY_OPENBLAS=ON, and makes a wheel for this machine
alone; CARRY_JOBS says how many compilers run at once.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
# In a source distribution the C sources are in native/; in a checkout they are two folders up.
SOURCE = HERE / "native" if (HERE / "native").is_dir() else HERE.parents[1]
NATIVE = ("CMakeLists.txt", "LICENSE", "cmake", "include", "src", "docs/man")
LIBRARY = "libcarry.dylib" if sys.platform == "darwin" else "libcarry.so"


CUDA = os.environ.get("CARRY_CUDA", "") not in ("", "0", "OFF")
PREBUILT = os.environ.get("CARRY_PREBUILT")
MACHINES = {0x3E: "x86_64", 0xB7: "aarch64"}  # e_machine of ELF files

WITHOUT = [f"-DCARRY_{part}=OFF" for part in ("OPENBLAS", "MPI", "PCRE2", "UTF8PROC", "LAB", "TRAIN", "PAGE", "WERROR")]


def build_library(folder: Path) -> Path:
    """Configure and build the shared library in folder, or take the one that was built before; its path."""
    if PREBUILT:
        return Path(PREBUILT)
    jobs = os.environ.get("CARRY_JOBS") or str(os.cpu_count() or 1)
    more = shlex.split(os.environ.get("CARRY_CMAKE_ARGS", ""))
    options = [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCARRY_TESTS=OFF",
        *WITHOUT,
        *(["-DCARRY_CUDA=ON", "-DCARRY_NCCL=OFF"] if CUDA else []),
        *more,
    ]
    subprocess.run(["cmake", "-S", str(SOURCE), "-B", str(folder), *options], check=True)
    subprocess.run(["cmake", "--build", str(folder), "--target", "carry_shared", "-j", jobs], check=True)
    return folder / LIBRARY


class BuildWithLibrary(build_py):
    """The Python files, and the library beside them. An editable install uses CARRY_LIBRARY instead."""

    def run(self) -> None:
        super().run()
        if getattr(self, "editable_mode", False):
            return
        built = build_library(HERE / "build" / ("cuda" if CUDA else "native"))
        target = Path(self.build_lib) / "libcarry" / LIBRARY
        shutil.copyfile(built.resolve(), target)  # the file itself, not the chain of version links
        target.chmod(0o755)


def manylinux(platform: str, library: Path) -> str:
    """linux_x86_64 as manylinux_2_34_x86_64, by the versions of glibc's symbols in the library; of its machine."""
    if not platform.startswith("linux_") or os.environ.get("CARRY_CMAKE_ARGS") or not library.exists():
        return platform
    content = library.read_bytes()
    machine = MACHINES.get(int.from_bytes(content[18:20], "little"), platform[len("linux_") :])
    versions = [int(found) for found in re.findall(rb"GLIBC_2\.(\d+)", content)]
    return f"manylinux_2_{max([17, *versions])}_{machine}"


class PlatformWheel(bdist_wheel):
    """For any Python 3, but for one platform."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if CUDA and not self.build_number:
            self.build_number = "1cuda"

    def get_tag(self) -> tuple[str, str, str]:
        library = Path(PREBUILT) if PREBUILT else HERE / "build" / ("cuda" if CUDA else "native") / LIBRARY
        return "py3", "none", manylinux(super().get_tag()[2], library)


class SourcesWithLibrary(sdist):
    """The C sources travel too, so that a source distribution can be built anywhere."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        for name in NATIVE:
            source, target = SOURCE / name, Path(base_dir) / "native" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            else:
                shutil.copyfile(source, target)


class BinaryDistribution(Distribution):
    """Has a library although it has no extension module, so the wheel is not for every platform."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=BinaryDistribution,
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel, "sdist": SourcesWithLibrary},
)
