"""Read a checkpoint directory's safetensors, whole or sharded, by the names of a Hugging Face Llama checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ....fsm.errors import BrokenArtifact, ContradictoryModel, UnsupportedModel
from ...files import check_file, read_json

INDEX = "model.safetensors.index.json"
_LAYER = re.compile(r"model\.layers\.(\d{1,9})\.")
_OTHER_FORMATS = (".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".h5", ".onnx", ".gguf")
_DERIVED = ("rotary_emb.inv_freq",)  # tables that some checkpoints carry and that the configuration implies


def weight_files(directory: Path) -> list[Path]:
    """The weight files of `directory`, sorted by name, the index first where there is one.

    Errors: BrokenArtifact, also for what is no regular file or a Git LFS pointer; UnsupportedModel where the weights
    are there in another format only.
    """
    index = directory / INDEX
    if index.is_file():
        return [index, *(check_file(directory / name) for name in sorted(set(_places(index).values())))]
    single = directory / "model.safetensors"
    files = [single] if single.is_file() else sorted(directory.glob("*.safetensors"))
    if not files:
        others = sorted(path.name for path in directory.iterdir() if path.suffix in _OTHER_FORMATS)
        if others:
            raise UnsupportedModel("weights", others[0], "safetensors (save it so, or fetch the model's safetensors)")
        raise BrokenArtifact(str(directory), "holds no safetensors weights")
    return [check_file(path) for path in files]


def count_parameters(directory: Path) -> int:
    """How many numbers the checkpoint's weights have, as they are stored. Errors: those of `weight_files`."""
    total = 0
    for path in weight_files(directory):
        if path.name != INDEX:
            file: Any = safe_open(path, framework="pt")
            total += sum(prod(file.get_slice(name).get_shape()) for name in tuple(file.keys()))
    return total


def _places(index: Path) -> dict[str, str]:
    """Which file each tensor is in, by the index. Errors: BrokenArtifact, also for a file outside its directory."""
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise BrokenArtifact(str(index), "has no weight_map from tensor names to file names")
    for tensor, name in names.items():
        # A lone surrogate or a NUL, which no file name can have, is not printable.
        plain = isinstance(name, str) and name == Path(name).name and name.isprintable()
        if not plain or not name.endswith(".safetensors"):
            raise BrokenArtifact(str(index), f"places {tensor} in {name!r}, no safetensors file of this directory")
    return names


class Checkpoint:
    """An open checkpoint: each tensor is taken once, and none may be left over."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: list[Any] = []
        self._owner: dict[str, Any] = {}

    def __enter__(self) -> Checkpoint:
        """Errors: those of `weight_files`, and ContradictoryModel where two files have a tensor of one name."""
        paths = weight_files(self._directory)
        places = _places(paths.pop(0)) if paths[0].name == INDEX else {}
        for path in paths:
            self._open(path, places)
        return self

    def __exit__(self, *_: object) -> None:
        self._files.clear()
        self._owner.clear()

    def take(self, name: str, *shape: int) -> Tensor:
        """A copy of the named tensor, on the CPU. Errors: BrokenArtifact on absence or another shape."""
        if name not in self._owner:
            raise BrokenArtifact(str(self._directory), f"has no tensor {name}, which its config.json calls for")
        tensor: Tensor = self._owner.pop(name).get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise BrokenArtifact(str(self._directory), f"{name} is {tuple(tensor.shape)}, and the config says {shape}")
        return tensor.clone()

    def leave_copy(self, name: str, of: str, said: str) -> None:
        """Leave out a tensor that, as the configuration says, is only a copy of another one.

        said  where it says so, in words. Errors: ContradictoryModel where the two differ.
        """
        if name in self._owner and of in self._owner:
            copy, original = (self._owner[each].get_tensor(each) for each in (name, of))
            if not torch.equal(copy, original):
                where = f"{self._directory}/config.json ({said})"
                raise ContradictoryModel(where, f"the weights of {name}", f"it differs from {of}")
            del self._owner[name]

    def finish(self, layers: int) -> None:
        """Refuse tensors that nothing took: they belong to a model that this decoder is not.

        Errors: UnsupportedModel; ContradictoryModel for those of a layer that the configuration does not have.
        """
        left = sorted(name for name in self._owner if not name.endswith(_DERIVED))
        for name in left:
            if (layer := _LAYER.match(name)) and int(layer[1]) >= layers:
                where = f"{self._directory}/config.json (num_hidden_layers = {layers})"
                raise ContradictoryModel(where, f"the weights of {name}", f"they have a layer {layer[1]}")
        if left:
            raise UnsupportedModel("tensor", left[0], "the tensors of a plain Llama-like decoder")

    def _open(self, path: Path, places: Mapping[str, str]) -> None:
        try:
            file: Any = safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise BrokenArtifact(str(path), str(error)) from error
        self._files.append(file)
        for name in tuple(file.keys()):
            place = places.get(name, path.name)
            if place != path.name:
                raise ContradictoryModel(f"{self._directory}/{INDEX}", str(path), f"{name} is to be in {place}")
            if name in self._owner:
                raise ContradictoryModel(str(path), "another file of the weights", f"both have a tensor {name}")
            self._owner[name] = file
