"""Where the process begins: Ctrl-C and the standard streams first, then everything that takes time to load."""

from __future__ import annotations

from . import interrupts


def main() -> None:
    """The console script."""
    interrupts.begin()
    from . import standard

    standard.prepare()
    from .app import main as run

    run()


interrupts.begin()

if __name__ == "__main__":
    main()
