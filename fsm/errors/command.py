"""What people type on the command line, and the files and processes that it names."""

from __future__ import annotations

from dataclasses import dataclass

from .problem import Rejected, Transient


@dataclass(eq=False)
class AmbiguousJob(Rejected):
    code = "ambiguous_job"
    says = "{prefix} begins the names of {count} jobs, among them {candidates}; write more of the name"
    prefix: str
    count: int
    candidates: list[str]


@dataclass(eq=False)
class FamilyMeant(Rejected):
    """A name of several jobs, where one is asked for; `jobs` are in the order of their choices."""

    code = "family_meant"
    says = "{family} is a family of the jobs {jobs}; name one of these"
    family: str
    jobs: list[str]

    def words(self) -> str:
        count, first, last = len(self.jobs), self.jobs[0], self.jobs[-1]
        return f"{self.family} is a family of {count} jobs; name one of them, from {first} to {last}"


@dataclass(eq=False)
class UnreadableInput(Rejected):
    code = "unreadable_input"
    says = "{path} cannot be read: {reason}; name a readable UTF-8 file, or - for standard input"
    path: str
    reason: str


@dataclass(eq=False)
class UnwritableOutput(Rejected):
    code = "unwritable_output"
    says = "{path} cannot be written: {reason}; name another file"
    path: str
    reason: str


@dataclass(eq=False)
class OutputFailed(Rejected):
    """Standard output cannot be written; what the command did before is not undone."""

    code = "output_failed"
    says = (
        "standard output cannot be written: {reason}; what was done before stands: make room, or send the output "
        "elsewhere"
    )
    reason: str


@dataclass(eq=False)
class WholeNameNeeded(Rejected):
    code = "whole_name_needed"
    says = (
        "{given} is only the beginning of {name}; write the whole name, or give --yes: what is erased is gone for good"
    )
    given: str
    name: str


@dataclass(eq=False)
class PromptMissing(Rejected):
    """Nobody has said what is to be completed or answered, and standard input, where it was looked for, has nothing."""

    code = "prompt_missing"
    says = (
        "no prompt is given, and {reason}; give one of --prompt, --prompt-file, --user and --chat, a --request with "
        "one, or text on standard input"
    )
    reason: str


@dataclass(eq=False)
class ConflictingFlags(Rejected):
    code = "conflicting_flags"
    says = "{flags} cannot be used together; {advice}"
    flags: str
    advice: str


@dataclass(eq=False)
class ExtraMissing(Rejected):
    """The base installation reads and proves logs; what else this needs is an extra."""

    code = "extra_missing"
    says = "this needs {package}, which is not installed; install the extra {extra}: pip install 'decodelog[{extra}]'"
    package: str
    extra: str


@dataclass(eq=False)
class ChildFailed(Transient):
    """A child process ended on its own with a failure."""

    code = "child_failed"
    says = "process {pid} ended before its work did ({reason}); find out what ended it, and try again"
    pid: int
    reason: str
