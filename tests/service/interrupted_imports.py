"""Run the command line from its entry on, and press Ctrl-C when the N-th module is about to be loaded.

Arguments: N, then the command. Without N ("-") it counts the modules and says how many they were, as the last line.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib.abc import MetaPathFinder

BEGUN = "decodelog.service.cli.interrupts"  # what comes before it is the interpreter's own


class Interrupting(MetaPathFinder):
    def __init__(self, nth: int) -> None:
        self.seen = 0
        self._nth = nth

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if self.seen or BEGUN in sys.modules:
            self.seen += 1
            if self.seen == self._nth:
                os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    given = sys.argv[1]
    finder = Interrupting(0 if given == "-" else int(given))
    sys.meta_path.insert(0, finder)
    sys.argv[1:] = sys.argv[2:]
    from decodelog.service.cli.entry import main

    try:
        main()
    finally:
        if given == "-":
            print(finder.seen)
