"""The commands that there are: where each one lies, what its help says, and how it is used."""

from __future__ import annotations

from typing import Final

from ..later import Listed


def _in(room: str, help: str, *examples: str) -> Listed:
    return Listed(room, help, examples)


COMMANDS: Final = {
    "run": _in(
        "run",
        "Generate text durably, streaming it to standard output.",
        "decodelog run --model smollm2-135m-instruct --user 'Name three rivers.' --max-new-tokens 60",
        "decodelog run --model ./checkpoint --prompt 'Once' --temperature 0.8 --seed 7 --json",
        "decodelog run --model smollm2-135m-instruct --prompt 'Once' --temperature 0.8 --n 3 --batch-width 3",
    ),
    "submit": _in(
        "run",
        "Put a request into the log for a worker, and print its job's or its family's name.",
        "decodelog submit --model smollm2-135m-instruct --chat chat.json --idempotency-key order-17",
        "decodelog submit --model registered --user 'Name three rivers.'",
    ),
    "fork": _in(
        "fork",
        "Put a job into the log that goes on from a prefix of another.\n\n"
        "What no flag speaks of is as it was there, retention too.",
        "decodelog fork 01a2 --at 12 --temperature 1.1 --seed 3",
    ),
    "resume": _in(
        "run",
        "Bring a job or a family to its end and print its text, or --all of them.",
        "decodelog resume 01a2",
        "decodelog resume --all",
    ),
    "batch": _in(
        "batch",
        "Answer a file of requests; killed and started again, it goes on and writes each line exactly once.\n\n"
        "Exits with 1 where a line was refused or its job failed; the line then says why.",
        "decodelog batch requests.jsonl answers.jsonl --model smollm2-135m-instruct --lanes 16",
    ),
    "worker": _in(
        "worker",
        "Run jobs as they come, and print a line for each that ends.",
        "decodelog worker --drain --lanes 16",
        "decodelog worker --models /models --models ./checkpoint",
    ),
    "jobs": _in(
        "jobs",
        "List the newest jobs, oldest first: the last 1000 in a table, all of them with --all or as JSON.",
        "decodelog jobs --state live --watch",
        "decodelog jobs --limit 5 --json",
    ),
    "show": _in(
        "jobs",
        "Print a job, or each of a family: how it stands, its times, what it asks for, its usage and its text so far.",
        "decodelog show @last",
        "decodelog show 01a2 --all --json",
    ),
    "cancel": _in(
        "jobs",
        "End a job or a family now, with exactly the tokens it has; what has ended otherwise stays so.",
        "decodelog cancel 01a2",
    ),
    "events": _in("streams", "Print the events of a job, one a line.", "decodelog events 01a2 --from 20 --follow"),
    "tail": _in(
        "streams",
        "Print a job's text from a sequence number on, as it grows.",
        "decodelog tail 01a2",
        "decodelog tail 01a2 --from 20 --no-follow --json",
    ),
    "explain": _in(
        "explain",
        "Tell why a token was chosen, and what came of it, from the log alone.",
        "decodelog explain 01a2 --step 3",
        "decodelog explain 01a2 --json",
    ),
    "compare": _in(
        "compare",
        "Compare two jobs step by step at six levels, or one with its request run again; a difference exits with 1.",
        "decodelog compare 01a2 01b7",
        "decodelog compare 01a2 --reexecute --level decision",
    ),
    "audit": _in(
        "audit",
        "Prove the logs from what is stored; exit 1 on a fault, 3 where jobs were to be run again and were not.",
        "decodelog audit --all --anchor /elsewhere/anchors",
        "decodelog audit 01a2 --json",
        "decodelog audit 01a2 --reexecute",
    ),
    "export": _in(
        "export",
        "Write logs to a file that `verify` can prove anywhere.",
        "decodelog export 01a2 --out job.dlog",
        "decodelog export --all --out logs.dlog --force",
        "decodelog export 01a2 --redact --out chain.dlog",
    ),
    "verify": _in(
        "export",
        "Prove an exported file, without database or model; exit 1 on a fault.",
        "decodelog verify job.dlog --json",
        "decodelog verify job.dlog --key public.pem",
    ),
    "snapshot": _in(
        "snapshot",
        "Write a job to a file as it stands, with its log and its cache's rows, to go on from anywhere.",
        "decodelog snapshot 01a2 --out job.dlog",
        "decodelog snapshot 01a2 --form repaired --cache-dir ./caches --out job.dlog",
    ),
    "restore": _in(
        "snapshot",
        "Bring the jobs of a file into the database, after proving all of it; what is there already stays.",
        "decodelog restore job.dlog --db sqlite:///other.db --cache-dir ./caches",
    ),
    "seal": _in(
        "keep",
        "Compress the logs of ended jobs, each into one row that shows the same; exit 1 where one is refused.",
        "decodelog seal 01a2",
        "decodelog seal --all --older-than 1d",
    ),
    "erase": _in(
        "keep",
        "Erase prompt, output and request of ended jobs for good; the chain of their logs can still be "
        "proven.\n\n"
        "On a terminal it asks first. Elsewhere it takes whole names only, or --yes.",
        "decodelog erase 01a2 01b7 --cache-dir caches",
    ),
    "sweep": _in(
        "keep",
        "Erase what is past its --retain, seal what ended long ago, remove what --cache-dir has of ended jobs.",
        "decodelog sweep --seal-after 1d",
        "decodelog sweep --seal-after 1d --dry-run",
    ),
    "diagram": _in(
        "diagram",
        "Print the state machine of a job, as text or as a picture.",
        "decodelog diagram --svg --out machine.svg",
    ),
    "doctor": _in("doctor", "Check this machine and say what to do; exit 1 on a failure.", "decodelog doctor"),
    "torture": _in(
        "torture",
        "Kill processes everywhere, and take databases away from workers; exit 1 if that changed anything.\n\n"
        "Processes are killed at every statement, sync and model call, in every state. Servers are stopped, "
        "disks filled and locks held while workers run jobs.",
        "decodelog torture --quick",
        "decodelog torture --only decided:append.commit:3 --db sqlite",
    ),
    "demo": _in(
        "demo",
        "Kill a real generation twice, and show that nothing changed.",
        "decodelog demo",
        "decodelog demo --keep ./demo --max-new-tokens 60",
    ),
    "model": _in("model", "Fetch, register, list and show models."),
    "db": _in("db", "Make, upgrade and check a database's schema."),
}
