"""What holds for every test: one thread a process, no network, and properties that fail the same way twice."""

from __future__ import annotations

import os
import signal

# Set before torch is imported, and inherited by child processes. Test processes run side by side, one a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"

# A shell that runs the tests in the background has them ignore Ctrl-C, and their child processes would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from hypothesis import settings

# `steady` tries the same examples in every run; `pytest --hypothesis-profile=search` looks for new ones.
settings.register_profile("steady", deadline=None, derandomize=True, database=None, print_blob=True)
settings.register_profile("search", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile("steady")

pytest_plugins = ["databases"]  # the fixtures of `tests/databases.py`, for every folder
