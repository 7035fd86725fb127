"""What pages, units and the compose file give to the command line is what it takes."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from documented import check, real, shown
from typer.main import get_command

from decodelog.service.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
UNITS = sorted((ROOT / "deploy").glob("*.service"))
COMPOSE = ROOT / "deploy" / "compose.yaml"
INSTALLED = "/opt/decodelog/bin/decodelog"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_command_in_a_block_of_a_page_is_taken(page: Path) -> None:
    for given in shown(page):
        check(given)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_command_in_a_sentence_of_a_page_exists_with_its_flags(page: Path) -> None:
    for words in re.findall(r"`decodelog ([^`]+)`", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)):
        assert not list(unknown(words.split())), words


def flags_of(command: Any) -> set[str]:
    return {"--help", *(flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts))}


def unknown(words: list[str]) -> Iterator[str]:
    """What is no command, or no flag of the command before it."""
    command: Any = get_command(app)
    for word in words:
        if hasattr(command, "commands"):
            if word not in command.commands:
                yield word
                return
            command = real(command.commands[word])
        elif word.startswith("-") and word not in flags_of(command):
            yield word


def test_a_flag_that_is_not_there_is_found_in_a_sentence() -> None:
    assert list(unknown(["worker", "--lanes", "--laness", "--help"])) == ["--laness"]
    assert list(unknown(["dbs", "upgrade"])) == ["dbs"]


@pytest.mark.parametrize("given", ["rum", "db", "db upgradee", "run", "worker --lanes many", "worker --laness 8"])
def test_what_the_command_line_does_not_take_is_found(given: str) -> None:
    with pytest.raises(ValueError, match=given.split()[-1]):
        check(given.split())


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_that_is_taken(unit: Path) -> None:
    (line,) = re.findall(r"^ExecStart=(.+)$", unit.read_text("utf-8"), flags=re.MULTILINE)
    program, *given = shlex.split(line)
    assert program == INSTALLED
    check(given)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    copies = []
    for unit in (ROOT / "deploy").glob("decodelog-*"):
        copies.append(tmp_path / unit.name)
        copies[-1].write_text(unit.read_text("utf-8").replace(INSTALLED, "/bin/true"), encoding="utf-8")
    assert len(copies) == len(UNITS) + 1
    found = subprocess.run(["systemd-analyze", "verify", "--man=no", *copies], capture_output=True, text=True)
    assert (found.returncode, [line for line in found.stderr.splitlines() if "decodelog" in line]) == (0, [])


def test_the_compose_file_starts_commands_that_are_taken() -> None:
    services = yaml.safe_load(COMPOSE.read_text("utf-8"))["services"]
    ours = {name: service for name, service in services.items() if "build" in service}
    assert {"schema", "model", "worker"} == set(ours)
    for service in ours.values():
        check(service["command"])
        assert (COMPOSE.parent / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert set(service.get("depends_on", ())) <= set(services)


def test_the_image_has_every_package_and_the_folders_of_the_compose_file() -> None:
    image = (ROOT / "deploy" / "Dockerfile").read_text("utf-8")
    copied = set(re.findall(r"^COPY (\w+) \./\1$", image, flags=re.MULTILINE))
    assert copied == {"decodelog", *(link.name for link in (ROOT / "decodelog").iterdir() if link.is_symlink())}
    mounted = yaml.safe_load(COMPOSE.read_text("utf-8"))["services"]["worker"]["volumes"]
    assert all(f" {volume.partition(':')[2]}" in image for volume in mounted)
