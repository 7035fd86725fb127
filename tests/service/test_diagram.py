"""The picture and the text of the machine say what the table says."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from commandline import decodelog

from decodelog.fsm.machine.states import Status, Trigger
from decodelog.fsm.machine.table import ROWS
from decodelog.service.inspect import diagram

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.contract("FSM-1")
def test_the_text_lists_every_row_of_the_table_under_its_state() -> None:
    rows, source = [], ""
    for line in decodelog("diagram").stdout.splitlines():
        if not line.startswith(" "):
            source = line.split()[0]
        elif "->" in line:
            trigger, target = line.split("->")
            rows.append((Trigger(trigger.strip()), Status(source), Status(target.strip())))
    assert sorted(rows) == sorted(ROWS)


def test_the_picture_has_every_state_and_every_row_of_the_table() -> None:
    """The picture has every state once and an arrow for every row or group of rows."""
    drawn = ElementTree.fromstring(decodelog("diagram", "--svg").stdout)
    texts = {
        kind: [each.text for each in drawn.iter(f"{SVG}text") if each.get("class") == kind]
        for kind in ("name", "trigger")
    }
    assert texts["name"] == list(Status)
    assert set(texts["trigger"]) == set(Trigger)
    # Every live state can end, and be taken over: three arrows for twelve rows. The rest has an arrow for each pair.
    shared = {Trigger.REQUEST_CLOSED, Trigger.REQUEST_FAILED, Trigger.ATTEMPT_STARTED}
    pairs = {(source, target) for trigger, source, target in ROWS if trigger not in shared}
    arrows = [each for each in drawn.iter(f"{SVG}path") if each.get("class") == "arrow"]
    assert len(arrows) == len(pairs) + len(shared) + 1  # and the one that begins


def test_a_changed_table_changes_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    before = diagram.as_svg()
    monkeypatch.setattr(diagram, "ROWS", tuple(row for row in ROWS if row[0] is not Trigger.CALL_FAILED))
    assert "call.failed" in before
    assert "call.failed" not in diagram.as_svg()


def test_no_label_lies_on_a_box_or_outside() -> None:
    drawn = ElementTree.fromstring(diagram.as_svg())
    for label in drawn.iter(f"{SVG}text"):
        if label.get("class") == "trigger":
            x, y, width = float(label.get("x", 0)), float(label.get("y", 0)), 8.0 * len(label.text or "")
            left = {"middle": x - width / 2, "start": x, "end": x - width}[label.get("text-anchor", "start")]
            assert 0 <= left <= left + width <= diagram.CANVAS.x
            for centre in diagram.CENTRES.values():
                apart = (
                    left + width < centre.x - diagram.SIZE.x / 2
                    or left > centre.x + diagram.SIZE.x / 2
                    or abs(y - 4 - centre.y) > diagram.SIZE.y / 2 + 6
                )
                assert apart, label.text


def test_it_is_written_to_a_file_where_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "machine.svg"
    told = decodelog("diagram", "--svg", "--out", file)
    assert (told.code, told.stdout) == (0, "")
    assert file.read_text("utf-8") == diagram.as_svg()
    decodelog("diagram", "--json", "--out", file)
    assert len(json.loads(file.read_text("utf-8"))["transitions"]) == len(ROWS)
