"""Show type checkers the package `decodelog`: build/typing/decodelog/<name> links to the folder <name>.

The names come from pyproject.toml, so a new package is seen without a change here.
"""

from __future__ import annotations

import os
import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def package_folders(root: Path) -> dict[str, str]:
    """Import name -> folder, as setuptools maps them."""
    declared = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    folders: dict[str, str] = declared["tool"]["setuptools"]["package-dir"]
    return folders


def link(root: Path) -> None:
    """Make the links anew; what an earlier layout left there is removed."""
    shutil.rmtree(root / "build/typing", ignore_errors=True)
    for name, folder in package_folders(root).items():
        place = root / "build/typing" / name.replace(".", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(os.path.relpath(root / folder, place.parent), target_is_directory=True)


if __name__ == "__main__":
    link(ROOT)
