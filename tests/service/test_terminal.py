"""What a terminal gets: nothing that others wrote for it to obey; and whole names, however it presents itself."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import sqlite3
import struct
import subprocess
import sys
import termios
from contextlib import closing
from pathlib import Path

import pytest
from commandline import COMMAND, at_terminal, decodelog, environment, jobs, script
from typer.main import get_command

from decodelog.service.cli import terminal
from decodelog.service.cli.app import WIDTH_MAX, app
from decodelog.service.cli.board import Board
from decodelog.service.cli.visible import coloured, visible, visible_line

CLIPBOARD, TITLE, CLEAR, C1 = "\x1b]52;c;QUJD\x07", "\x1b]0;mine\x07", "\x1b[2J\x1b[1A", "\x9b2J\x9d0;x\x9c"
ATTACKS = f"{CLIPBOARD}{TITLE}{CLEAR}{C1}\r\b\x7f\x00\x0c\u202e\u2066"
ALL = """
import json, sys
from decodelog.service.cli import standard
from decodelog.service.cli.app import app
from decodelog.service.cli.edge import run_to_end
standard.prepare()
for index, command in enumerate(json.loads(sys.argv[1])):
    sys.argv[1:] = command
    if index:
        sys.stdout.write("\\n====\\n")
    run_to_end(lambda: app(command, prog_name="decodelog"))
"""
"""Several commands in one process, as `cli.main` runs each."""

OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[1A|\x1b\[2K|\r")  # colours, and a line that is written over


def on_terminal(*command: object, db: str | None = None, **changes: str) -> tuple[int, str]:
    """Run a command with a terminal as all its streams; its exit code and what the terminal got."""
    given = [*COMMAND, *map(str, command), *(["--db", db] if db else [])]
    return at_terminal(given, **changes)


def harmless(got: str) -> bool:
    """Whether there is nothing to obey in it but what this program itself writes for people."""
    return visible(OWN.sub("", got)) == OWN.sub("", got)


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A model that writes attacks."""
    return script(tmp_path / "model", script={"text": f"{ATTACKS}Hi"})


def test_no_sequence_of_a_jobs_own_reaches_a_terminal(odd: Path, sqlite_url: str) -> None:
    """Its tokens are single bytes here, so every sequence comes in parts."""
    code, got = on_terminal("run", "--model", odd, "--prompt", "Go", "--idempotency-key", f"k{TITLE}", db=sqlite_url)
    assert (code, harmless(got)) == (0, True)
    assert visible(ATTACKS) + "Hi\n" in got
    assert "loading" in got
    assert "\x1b[" in got  # our own
    (row,) = jobs(sqlite_url)
    commands = (
        ["show", row.job], ["jobs"], ["tail", row.job], ["events", row.job], ["explain", row.job],
        ["tail", row.job, "--json"], ["jobs", "--json"],
        ["run", "--model", f"no{TITLE}", "--prompt", "x"], ["show", f"x{TITLE}"], [f"x{TITLE}"],
        ["run", "--model", str(odd), "--prompt", "y", "--idempotency-key", f"k{TITLE}"],
        ["run", "--model", str(odd), "--prompt", "y", "--idempotency-key", f"k{TITLE}", "--json"],
        ["run", "--model", str(script(odd.parent / f"m{CLIPBOARD}{CLEAR}\x9b2J")), "--prompt", "y"],
        ["show", row.job, "--json"],
    )  # fmt: skip
    _, got = at_terminal([sys.executable, "-c", ALL, json.dumps(commands)], DECODELOG_DB=sqlite_url)
    parts = got.split("\n====\n")
    assert [(command, part) for command, part in zip(commands, parts, strict=True) if not harmless(part)] == []
    assert "QUJD" in parts[0]
    assert "QUJD" in parts[-2]  # a model in a folder whose name is an attack is refused, and named
    assert json.loads(parts[-1])["text"] == f"{ATTACKS}Hi"


def test_pipes_are_exact(odd: Path, sqlite_url: str) -> None:
    ran = subprocess.run(
        [*COMMAND, "run", "--model", str(odd), "--prompt", "Go", "--db", sqlite_url], capture_output=True, check=True
    )
    assert ran.stdout == f"{ATTACKS}Hi\n".encode()
    (row,) = jobs(sqlite_url)
    assert str(odd) in decodelog("show", row.job, db=sqlite_url).stdout
    shown = subprocess.run([*COMMAND, "tail", row.job, "--db", sqlite_url], capture_output=True, check=True)
    assert shown.stdout == ran.stdout


def test_what_libraries_write_to_a_terminal_keeps_its_colours_alone() -> None:
    program = (
        "import sys, warnings; from decodelog.service.cli import standard; standard.prepare();"
        f"sys.stdout.write('\\x1b[1mbold\\x1b[0m' + {ATTACKS!r});"
        f"warnings.warn({ATTACKS!r}); raise ValueError({ATTACKS!r})"
    )
    code, got = at_terminal([sys.executable, "-c", program], NO_COLOR="1")
    assert (code, "\x1b[1mbold\x1b[0m" in got, got.count("QUJD")) == (1, True, 3)
    assert harmless(got)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 日本 \U0001f600\ttab\nline", "plain é 日本 \U0001f600\ttab\nline"),
        ("\x1b[31m", r"\u001b[31m"),
        ("\x9b\r\x7f\u202e\udc9b", r"\u009b\u000d\u007f\u202e\udc9b"),
        ("", ""),
    ],
)
def test_controls_are_shown_and_all_else_is_as_it_was(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(shown) == shown
    assert visible_line(text) == shown.replace("\t", r"\u0009").replace("\n", r"\u000a")
    if "\udc9b" not in text:
        assert json.loads(visible(terminal.json_line([text]))) == [text]


def test_every_control_character_is_shown_whatever_it_is_called() -> None:
    controls = [
        *map(chr, range(32)),
        *map(chr, range(127, 160)),
        *"\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
    ]
    assert [each for each in controls if visible(each) == each] == ["\t", "\n"]
    assert coloured("\x1b[1;31mred\x1b[0m \x1b[2J \x1b[31") == "\x1b[1;31mred\x1b[0m \\u001b[2J \\u001b[31"


def test_markup_and_emoji_in_names_are_text(sqlite_url: str, tmp_path: Path) -> None:
    model = script(tmp_path / "[bold]m[/bold]:smile:[/x]", script={"text": "Hi"})
    code, got = on_terminal("run", "--model", model, "--prompt", "x", db=sqlite_url, COLUMNS="400", LINES="9")
    assert (code, "[bold]m[/bold]:smile:[/x]" in got) == (0, True)
    assert str(model) in on_terminal("jobs", db=sqlite_url)[1]


# ---- whole names ----------------------------------------------------------------------------------------------


TERMINALS = [
    {"TERM": "dumb"}, {"TERM": "dumb", "COLUMNS": "160", "FORCE_COLOR": "1"},
    {"TERM": "xterm", "COLUMNS": "10", "LINES": "3"}, {"TERM": "", "COLUMNS": "0", "NO_COLOR": "1"},
]  # fmt: skip


@pytest.mark.parametrize("changes", TERMINALS, ids=str)
def test_a_listing_has_whole_names_on_any_terminal(changes: dict[str, str], short_model: Path, sqlite_url: str) -> None:
    assert decodelog("submit", "--model", short_model, "--prompt", "Go", db=sqlite_url).code == 0
    (row,) = jobs(sqlite_url)
    _, got = on_terminal("jobs", db=sqlite_url, **changes)
    given = environment(**changes)
    piped = subprocess.run([*COMMAND, "jobs", "--db", sqlite_url], env=given, capture_output=True, encoding="utf-8")
    for listing in (got, piped.stdout):
        assert "…" not in listing
        line = OWN.sub("", listing).splitlines()[1]
        assert (line.split()[0], line.split()[1], line.strip().endswith(str(short_model))) == (
            row.job,
            "ADMITTED",
            True,
        )


@pytest.mark.parametrize("columns", ["0", "1", "80"])
def test_an_error_is_one_line_however_narrow(columns: str, sqlite_url: str) -> None:
    given = environment(COLUMNS=columns)
    command = [*COMMAND, "show", "nosuch", "--db", sqlite_url]
    told = subprocess.run(command, env=given, capture_output=True, encoding="utf-8")
    assert told.stderr.startswith("error[unknown_job]: there is no job nosuch")
    assert len(told.stderr.splitlines()) == 1


def test_no_value_makes_a_row_of_its_own_on_a_terminal(short_model: Path, sqlite_url: str) -> None:
    """As a damaged or hostile database may have one."""
    assert decodelog("submit", "--model", short_model, "--prompt", "G", db=sqlite_url).code == 0
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("UPDATE jobs SET model = ?", ("one\ntwo\t\x1b[2J",))
    code, text = on_terminal("jobs", db=sqlite_url)
    assert (code, len(text.splitlines())) == (0, 2)
    assert r"one\u000atwo\u0009\u001b[2J" in text
    assert "one\ntwo\t" in decodelog("jobs", db=sqlite_url).stdout


def test_a_table_asks_no_terminal_for_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that says it is dumb gives 80 columns as the answer to whoever does not name lines, too."""

    class Dumb(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", dumb := Dumb())
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.delenv("LINES", raising=False)
    terminal.write_table(("NAME", "COUNT"), [("x" * 300, 7)])
    assert dumb.getvalue().splitlines()[1].split() == ["x" * 300, "7"]


def test_a_board_is_drawn_over_and_makes_way_for_what_stays() -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 3, 12, 0, 0))
    lines = ["one", f"two {CLEAR} and more", "three"]
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        board = Board(stream, lambda: lines)
        board.draw()
        lines[:] = ["four"]
        board.draw()
        with board.aside():
            stream.write("stays\n")
            stream.flush()
        with board.shown():
            pass
    got = ""
    with contextlib.suppress(OSError):  # how a terminal ends
        while chunk := os.read(ours, 65536):
            got += chunk.decode().replace("\r\n", "\n")
    os.close(ours)
    assert got.startswith("one\ntwo \\u001b[2\n\x1b[2A\x1b[Jfour\n\x1b[1A\x1b[Jstays\n")
    assert got.endswith("stays\n") or got.endswith("four\n\x1b[1A\x1b[J")


def test_a_board_is_no_concern_of_a_pipe() -> None:
    pipe = io.StringIO()
    with Board(pipe, lambda: ["one"]).shown():
        pass
    assert pipe.getvalue() == ""


def test_help_has_whole_names_on_the_narrowest_terminal() -> None:
    """Every command's, in one process for all of them."""
    commands = {name: later.real for name, later in get_command(app).commands.items()}  # type: ignore[attr-defined]
    names = [
        ["--help"],
        *([name, "--help"] for name in commands),
        *(["db", name, "--help"] for name in commands["db"].commands),
    ]
    for changes in ({"TERM": "dumb", "COLUMNS": "160"}, {"TERM": "dumb", "COLUMNS": "12"}, {"COLUMNS": "20"}):
        given = environment(**{"TERM": "xterm", **changes})
        told = subprocess.run(
            [sys.executable, "-c", ALL, json.dumps(names)], env=given, capture_output=True, encoding="utf-8"
        ).stdout
        assert "…" not in told
        assert not re.search(r"[a-z,;']\.\.\.", told)  # nothing is cut off
        for command in commands.values():
            for option in command.params:
                for name in option.opts:
                    assert not name.startswith("--") or name in told, (changes, name)
        widest = max(map(len, told.splitlines()))
        assert (WIDTH_MAX - 20 < widest <= WIDTH_MAX) is (changes["COLUMNS"] == "160"), changes


@pytest.mark.parametrize("command", [["--help"], ["--version"]])
def test_the_list_of_commands_imports_none_of_them(command: list[str]) -> None:
    """It is asked for at every press of a key that completes a command."""
    program = (
        "import atexit, sys; from decodelog.service.cli.entry import main;"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr, sep='\\n')); main()"
    )
    done = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, encoding="utf-8", check=True)
    loaded = done.stderr.split()
    assert "decodelog.service.cli.app" in loaded
    assert {"rich", "pydantic", "sqlalchemy", "numpy", "torch"} & {*loaded} == set()
    assert [name for name in loaded if name.startswith("decodelog.service.cli.commands.")] == []


def test_importing_the_library_imports_nothing_else() -> None:
    program = "import sys; before = {*sys.modules}; import decodelog; print(*({*sys.modules} - before))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True)
    loaded = done.stdout.split()
    assert {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names} == {"decodelog"}
    assert len(loaded) < 10
