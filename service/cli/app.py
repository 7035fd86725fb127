"""The command `decodelog`: data on standard output, everything else on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from ... import __version__
from . import interrupts, standard, terminal
from .commands import (
    audit,
    batch,
    compare,
    db,
    demo,
    diagram,
    doctor,
    explain,
    export,
    fork,
    jobs,
    keep,
    model,
    run,
    snapshot,
    streams,
    torture,
    worker,
)
from .edge import Commands, run_to_end

SUMMARY = "Durable, replayable language-model generation: a kill loses no token, and a resume repeats none."

EPILOG = (
    "Exit codes: 0 done; 1 a job failed or a check found a fault; 2 wrong use or a refused request; "
    "3 no fault, and not all proven; 130 interrupted."
    "\n\nBegin with: decodelog demo"
)

app = typer.Typer(
    name="decodelog",
    cls=Commands,
    help=SUMMARY,
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
    run.run: (
        "decodelog run --model smollm2-135m-instruct --user 'Name three rivers.' --max-new-tokens 60",
        "decodelog run --model ./checkpoint --prompt 'Once' --temperature 0.8 --seed 7 --json",
        "decodelog run --model smollm2-135m-instruct --prompt 'Once' --temperature 0.8 --n 3 --batch-width 3",
    ),
    run.submit: (
        "decodelog submit --model smollm2-135m-instruct --chat chat.json --idempotency-key order-17",
        "decodelog submit --model registered --user 'Name three rivers.'",
    ),
    fork.fork: ("decodelog fork 01a2 --at 12 --temperature 1.1 --seed 3",),
    run.resume: ("decodelog resume 01a2", "decodelog resume --all"),
    batch.batch: ("decodelog batch requests.jsonl answers.jsonl --model smollm2-135m-instruct --lanes 16",),
    worker.worker: ("decodelog worker --drain --lanes 16", "decodelog worker --models /models --models ./checkpoint"),
    jobs.jobs: ("decodelog jobs --json",),
    jobs.show: ("decodelog show 01a2 --json",),
    jobs.cancel: ("decodelog cancel 01a2",),
    streams.events: ("decodelog events 01a2 --from 20 --follow",),
    streams.tail: ("decodelog tail 01a2", "decodelog tail 01a2 --from 20 --no-follow --json"),
    explain.explain: ("decodelog explain 01a2 --step 3", "decodelog explain 01a2 --json"),
    compare.compare: ("decodelog compare 01a2 01b7", "decodelog compare 01a2 --reexecute --level decision"),
    audit.audit: (
        "decodelog audit --all --anchor /elsewhere/anchors",
        "decodelog audit 01a2 --json",
        "decodelog audit 01a2 --reexecute",
    ),
    export.export: (
        "decodelog export 01a2 --out job.dlog",
        "decodelog export --all --out logs.dlog --force",
        "decodelog export 01a2 --redact --out chain.dlog",
    ),
    export.verify: ("decodelog verify job.dlog --json", "decodelog verify job.dlog --key public.pem"),
    snapshot.snapshot: (
        "decodelog snapshot 01a2 --out job.dlog",
        "decodelog snapshot 01a2 --form repaired --cache-dir ./caches --out job.dlog",
    ),
    snapshot.restore: ("decodelog restore job.dlog --db sqlite:///other.db --cache-dir ./caches",),
    keep.seal: ("decodelog seal 01a2", "decodelog seal --all --older-than 1d"),
    keep.erase: ("decodelog erase 01a2 01b7 --cache-dir caches",),
    keep.sweep: ("decodelog sweep --seal-after 1d", "decodelog sweep --seal-after 1d --dry-run"),
    diagram.diagram: ("decodelog diagram --svg --out machine.svg",),
    doctor.doctor: ("decodelog doctor",),
    torture.torture: ("decodelog torture --quick", "decodelog torture --only decided:append.commit:3 --db sqlite"),
    demo.demo: ("decodelog demo", "decodelog demo --keep ./demo --max-new-tokens 60"),
}

for command, examples in EXAMPLES.items():
    app.command(epilog="\n\n".join(f"Example: {example}" for example in examples))(command)
app.add_typer(model.app, name="model")
app.add_typer(db.app, name="db")


def show_version(asked: bool) -> None:
    if asked:
        terminal.write(f"decodelog {__version__}\n")
        raise typer.Exit()


@app.callback()
def decodelog(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


def main() -> None:
    """Run the command of this process's arguments, and exit. `entry.main` is the console script."""
    interrupts.begin()
    standard.prepare()
    # A model's threads wait for each other hundreds of times a token. Where they spin meanwhile, and other processes
    # want the cores too, a token takes ten times as long; waiting quietly costs a few percent on an idle machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    sys.exit(run_to_end(lambda: app(prog_name="decodelog")))


if __name__ == "__main__":
    main()
