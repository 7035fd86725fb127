"""Run commands in copies of this process whose standard streams are closed, full or without a reader.

Reads commands as a JSON list of lists from its first argument; writes for each command and state how it ended.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

from decodelog.service.cli import app as cli
from decodelog.service.lab.torture import campaign  # noqa: F401 - with all that commands load: once, for all the copies

STATES = ("whole", "closed", "none", "full", "left")


def bring_about(state: str, words: int) -> None:
    """Leave standard output as the state says, and standard error in a file, where there is one."""
    os.dup2(words, 2)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    if state == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    elif state == "left":
        theirs, ours = os.pipe()
        os.close(theirs)
        os.dup2(ours, 1)
    elif state == "whole":
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    else:
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            if state == "none" or name == "stdout":
                os.close(number)
                setattr(sys, name, None)  # as the interpreter has it then


def run(command: list[str], state: str) -> tuple[int, str]:
    """The exit code of a command in a state, and what it said on standard error."""
    with tempfile.TemporaryFile() as words:
        pid = os.fork()
        if not pid:
            code = 99
            try:
                bring_about(state, words.fileno())
                sys.argv = ["decodelog", *command]
                cli.main()
            except SystemExit as end:
                code = int(end.code or 0)
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        words.seek(0)
        return os.waitstatus_to_exitcode(status), words.read().decode()


if __name__ == "__main__":
    for command in json.loads(sys.argv[1]):
        ends = {state: run(command, state) for state in STATES}
        print(json.dumps({"command": command, "ends": ends}), flush=True)
