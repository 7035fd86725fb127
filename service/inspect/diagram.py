"""The state machine as text and as a picture, both from the table that the step runs on."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

from ...fsm.machine.states import Status, Trigger
from ...fsm.machine.table import INITIAL, ROWS

MEANINGS = {
    Status.ADMITTED: "sealed and durable",
    Status.PREFILLED: "one score row to consume",
    Status.DECIDED: "one receipt to consume",
    Status.PENDING: "its token comes next",
    Status.CLOSED: "ended as asked",
    Status.FAILED: "ended by a fault",
}

LIVE = frozenset(status for status in Status if not status.terminal)


def as_object() -> dict[str, Any]:
    """The table as plain values."""
    return {
        "initial": INITIAL,
        "states": [{"state": each, "meaning": MEANINGS[each], "terminal": each.terminal} for each in Status],
        "transitions": [{"trigger": trigger, "source": source, "target": target} for trigger, source, target in ROWS],
    }


# ---- text ------------------------------------------------------------------------------------------------------


def as_text() -> str:
    """Each state with its meaning, what it takes, and where that leads."""
    lines = []
    for status in Status:
        start = "  (a job begins here)" if status is INITIAL else ""
        lines.append(f"{status:<10} {MEANINGS[status]}{start}")
        taken = [(trigger, target) for trigger, source, target in ROWS if source is status]
        lines += [f"    {trigger:<17} -> {target}" for trigger, target in taken] or ["    takes nothing more"]
    return "\n".join(lines) + "\n"


# ---- picture ---------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    x: float
    y: float


# Placed by hand, in pixels; everything else follows from the table.
CENTRES = {
    Status.ADMITTED: Point(176, 200),
    Status.PREFILLED: Point(506, 200),
    Status.DECIDED: Point(836, 200),
    Status.PENDING: Point(671, 390),
    Status.CLOSED: Point(1226, 200),
    Status.FAILED: Point(1226, 390),
}
LOOPS_BELOW = {Status.PENDING}
SIZE = Point(180, 64)
FRAME = (50, 64, 912, 456)  # x, y, width, height of the box around the live states
CANVAS = Point(1352, 556)

COLOURS = {"live": ("#eef3fc", "#2f5fb3"), Status.CLOSED: ("#e9f6ee", "#23804a"), Status.FAILED: ("#fceceb", "#b8322a")}

HEAD = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {CANVAS.x} {CANVAS.y}" width="{CANVAS.x}" \
height="{CANVAS.y}" role="img" aria-label="The states of a decodelog job and what moves it">
<style>
  text {{ font-family: ui-sans-serif, "Segoe UI", "Helvetica Neue", "DejaVu Sans", Arial, sans-serif; fill: #1d2733 }}
  .name {{ font-size: 17px; font-weight: 700; letter-spacing: .4px }}
  .meaning {{ font-size: 12.5px; fill: #55606e }}
  .trigger {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 13px;
    stroke: #fff; stroke-width: 5px; stroke-linejoin: round; paint-order: stroke }}
  .arrow {{ fill: none; stroke: #46515f; stroke-width: 1.6; marker-end: url(#head) }}
  .frame {{ fill: #fbfcfe; stroke: #9fb2d2; stroke-width: 1.4; stroke-dasharray: 6 5 }}
</style>
<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0 1 L10 5 L0 9 z" fill="#46515f"/></marker></defs>
<rect width="{CANVAS.x}" height="{CANVAS.y}" rx="14" fill="#fff"/>
"""


def as_svg() -> str:
    """The same table drawn. Triggers that every live state takes alike are drawn once, from the frame around them."""
    own: dict[tuple[Status, Status], list[Trigger]] = defaultdict(list)
    shared: dict[Status | None, list[Trigger]] = defaultdict(list)
    for trigger in Trigger:
        moves = {source: target for each, source, target in ROWS if each is trigger}
        targets = {None if source is target else target for source, target in moves.items()}
        if moves.keys() == LIVE and len(targets) == 1:
            shared[targets.pop()].append(trigger)
        else:
            for source, target in moves.items():
                own[source, target].append(trigger)
    parts = [HEAD, _frame(shared[None]), _beginning()]
    parts += [_from_frame(target, triggers) for target, triggers in shared.items() if target is not None]
    parts += [_loop(a, triggers) if a is b else _arrow(a, b, triggers) for (a, b), triggers in own.items()]
    return "".join([*parts, *map(_box, Status), "</svg>\n"])


def _box(status: Status) -> str:
    (x, y), (width, height) = CENTRES[status], SIZE
    fill, stroke = COLOURS.get(status, COLOURS["live"])
    return (
        f'<rect x="{x - width / 2}" y="{y - height / 2}" width="{width}" height="{height}" rx="12" fill="{fill}" '
        f'stroke="{stroke}" stroke-width="{3 if status.terminal else 1.8}"/>\n'
        + _text("name", Point(x, y - 3), status)
        + _text("meaning", Point(x, y + 17), MEANINGS[status])
    )


def _text(kind: str, at: Point, words: str, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{at.x:.0f}" y="{at.y:.0f}" text-anchor="{anchor}">{words}</text>\n'


def _labels(at: Point, triggers: list[Trigger], anchor: str = "middle", upwards: bool = True) -> str:
    """One trigger a line; the line nearest to the arrow is the first or, upwards, the last."""
    top = at.y - 17 * (len(triggers) - 1) if upwards else at.y
    return "".join(_text("trigger", Point(at.x, top + 17 * row), each, anchor) for row, each in enumerate(triggers))


def _path(d: str) -> str:
    return f'<path class="arrow" d="{d}"/>\n'


def _arrow(source: Status, target: Status, triggers: list[Trigger]) -> str:
    start, end = _border(source, target), _border(target, source)
    middle = Point((start.x + end.x) / 2, (start.y + end.y) / 2)
    line = _path(f"M{start.x:.1f} {start.y:.1f} L{end.x:.1f} {end.y:.1f}")
    if abs(start.y - end.y) < 1:
        return line + _labels(Point(middle.x, middle.y - 10), triggers)
    right = middle.x > CENTRES[Status.PENDING].x
    return line + _labels(Point(middle.x + (14 if right else -14), middle.y + 5), triggers, "start" if right else "end")


def _border(status: Status, towards: Status) -> Point:
    """Where the line between two centres leaves the first one's box."""
    here, there = CENTRES[status], CENTRES[towards]
    dx, dy = there.x - here.x, there.y - here.y
    scale = min(SIZE.x / 2 / abs(dx) if dx else 9e9, SIZE.y / 2 / abs(dy) if dy else 9e9)
    return Point(here.x + dx * scale, here.y + dy * scale)


def _loop(status: Status, triggers: list[Trigger]) -> str:
    x, y = CENTRES[status]
    below = status in LOOPS_BELOW
    edge, far = (y + SIZE.y / 2, 42) if below else (y - SIZE.y / 2, -42)
    curve = _path(f"M{x - 26} {edge} C{x - 36} {edge + far} {x + 36} {edge + far} {x + 26} {edge}")
    tip = edge + far * 0.75
    return curve + _labels(Point(x, tip + 17 if below else tip - 8), triggers, upwards=not below)


def _frame(triggers: list[Trigger]) -> str:
    x, y, width, height = FRAME
    floor, left, right = y + height, x + 64, x + 124
    frame = f'<rect class="frame" x="{x}" y="{y}" width="{width}" height="{height}" rx="18"/>\n'
    frame += _text("meaning", Point(x + 4, y - 14), "Live states. An arrow from the frame leaves any of them.", "start")
    if not triggers:
        return frame
    loop = _path(f"M{left} {floor} C{left} {floor - 58} {right} {floor - 58} {right} {floor}")
    stays = _text("meaning", Point(right + 14, floor - 16), "and the state stays what it is", "start")
    return frame + loop + _labels(Point(right + 14, floor - 36), triggers, "start") + stays


def _from_frame(target: Status, triggers: list[Trigger]) -> str:
    edge, y = FRAME[0] + FRAME[2], CENTRES[target].y
    end = CENTRES[target].x - SIZE.x / 2
    return _path(f"M{edge} {y} L{end} {y}") + _labels(Point((edge + end) / 2 - 4, y - 10), triggers)


def _beginning() -> str:
    x, y = CENTRES[INITIAL].x - SIZE.x / 2, CENTRES[INITIAL].y
    return f'<circle cx="14" cy="{y}" r="6" fill="#46515f"/>\n' + _path(f"M20 {y} L{x} {y}")
