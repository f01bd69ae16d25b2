"""In a checkout without an installed wheel: the package is the one beside the tests, the library the newest build."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def use() -> None:
    """Make `import libcarry` work; an installed package and CARRY_LIBRARY go first."""
    sys.dont_write_bytecode = True
    if importlib.util.find_spec("libcarry") is None:
        sys.path.insert(0, str(PACKAGE))
    spec = importlib.util.find_spec("libcarry")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else PACKAGE / "libcarry"
    if "CARRY_LIBRARY" in os.environ or [*folder.glob("libcarry.*")]:
        return
    builds = [PACKAGE.parents[1] / "build" / name / "libcarry.so" for name in ("release", "dev")]
    newest = max((path for path in builds if path.exists()), key=lambda path: path.stat().st_mtime, default=None)
    if newest is not None:
        os.environ["CARRY_LIBRARY"] = str(newest)
