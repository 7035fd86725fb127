"""Read a checkpoint directory's safetensors, whole or sharded, by the names of a Hugging Face Llama checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...fsm.errors import BrokenArtifact, UnsupportedModel
from .config import read_json

INDEX = "model.safetensors.index.json"
_DERIVED = ("rotary_emb.inv_freq",)  # tables that some checkpoints carry and that the configuration implies


def weight_files(directory: Path) -> list[Path]:
    """The weight files of `directory`, sorted by name, the index first where there is one. Errors: BrokenArtifact."""
    index = directory / INDEX
    if index.is_file():
        return [index, *(directory / name for name in _shards(index))]
    single = directory / "model.safetensors"
    files = [single] if single.is_file() else sorted(directory.glob("*.safetensors"))
    if not files:
        raise BrokenArtifact(str(directory), "holds no safetensors weights")
    return files


def _shards(index: Path) -> list[str]:
    """The file names in the index, sorted. Errors: BrokenArtifact, also for a file outside the index's directory."""
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise BrokenArtifact(str(index), "has no weight_map from tensor names to file names")
    for tensor, name in names.items():
        # A lone surrogate or a NUL, which no file name can have, is not printable.
        plain = isinstance(name, str) and name == Path(name).name and name.isprintable()
        if not plain or not name.endswith(".safetensors"):
            raise BrokenArtifact(str(index), f"places {tensor} in {name!r}, no safetensors file of this directory")
    return sorted(set(names.values()))


class Checkpoint:
    """An open checkpoint: each tensor is taken once, and none may be left over."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: list[Any] = []
        self._owner: dict[str, Any] = {}

    def __enter__(self) -> Checkpoint:
        for path in weight_files(self._directory):
            if path.suffix == ".safetensors":
                self._open(path)
        return self

    def __exit__(self, *_: object) -> None:
        self._files.clear()
        self._owner.clear()

    def take(self, name: str, *shape: int) -> Tensor:
        """A copy of the named tensor, on the CPU. Errors: BrokenArtifact on absence or another shape."""
        if name not in self._owner:
            raise BrokenArtifact(str(self._directory), f"has no tensor {name}")
        tensor: Tensor = self._owner.pop(name).get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise BrokenArtifact(str(self._directory), f"{name} is {tuple(tensor.shape)}, and the config says {shape}")
        return tensor.clone()

    def finish(self, ignore: Callable[[str], bool]) -> None:
        """Refuse tensors that nothing took: they belong to a model that this decoder is not."""
        left = sorted(name for name in self._owner if not name.endswith(_DERIVED) and not ignore(name))
        if left:
            raise UnsupportedModel("tensor", left[0], "the tensors of a plain Llama-like decoder")

    def _open(self, path: Path) -> None:
        try:
            file: Any = safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise BrokenArtifact(str(path), str(error)) from error
        self._files.append(file)
        self._owner.update(dict.fromkeys(file.keys(), file))
