"""Jobs run by hand: a request, a log that grows by commands, and commands that fit where the job stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from envelope_examples import changed, plain

from decodelog.fsm.evidence.prompt_record import PromptToken
from decodelog.fsm.evidence.receipt import Alternative, Selection
from decodelog.fsm.machine.events import DecisionMade, Event, OutputCommitted, RequestAdmitted
from decodelog.fsm.machine.fold import fold
from decodelog.fsm.machine.next_step import Step, close_reason, next_step
from decodelog.fsm.machine.state import State
from decodelog.fsm.machine.states import Status
from decodelog.fsm.machine.transition import (
    CloseRequest,
    Command,
    CommitOutput,
    CompleteCall,
    IssueDecision,
    Proposal,
    RebuildLanes,
    StartAttempt,
    TakeStep,
    transitions,
)
from decodelog.fsm.ports import EMPTY_HEAD, Head, JobRow, Record
from decodelog.fsm.reading.transcript import Transcript
from decodelog.fsm.request.envelope import admitted

EOS = 2
PLACES = {
    "prompt": "prompt.token_ids",
    "context": "position_visibility.context_tokens_max",
    "retry_budget": "runtime.retry_budget",
    "eos": "termination.eos_ids",
    "stop": "termination.stop_strings",
    "stop_ids": "termination.stop_token_ids",
    "include_stop": "output.include_stop",
    "skip_special": "output.skip_special_tokens",
    "zero": "termination.zero_token_choice",
    "max_new": "termination.max_new_tokens",
    "min_new": "termination.min_new_tokens",
    "ignore_eos": "termination.ignore_eos",
    "order": "termination.finish_order",
    "echo": "output.echo_prompt",
    "extras": "output.extras",
    "alignment": "output.alignment",
    "final_cache": "output.final_cache",
}


def request(**options: Any) -> bytes:
    """Canonical bytes of a greedy request: a prompt of 3, up to 8 tokens, no stops; options by the names in PLACES."""
    options = {"max_new": 8, "prompt": [1, 40, 41], **options}
    options.setdefault("zero", None if options["max_new"] else "no_call")
    value = changed(plain(), {PLACES.get(name, name): setting for name, setting in options.items()})
    return admitted(value).canonical_bytes()


def selection(token: int, **facts: Any) -> Selection:
    return Selection(token, **{"support": 300, "logprob_raw": -0.5, "logprob": -0.25, "margin": 1.5, **facts})


def drawn(token: int, unit: float = 0.3) -> Selection:
    """A selection with something in every field."""
    best = (Alternative(token, -0.5, -0.25), Alternative(token + 1, -1.5, -1.25))
    return selection(token, unit_draw=unit, start=unit / 2, end=(unit + 1) / 2, alternatives=best)


def scores_of(state: State) -> bytes:
    """A stand-in for the digest of the score row at the state's place."""
    return sha256(b"scores %d" % state.frontier.output).digest()


def call(state: State) -> CompleteCall:
    """ALL_NEW of a call over everything unprocessed."""
    frontier = state.frontier
    return CompleteCall(frontier.unprocessed, frontier.prompt + frontier.output, scores_of(state))


def prompt_tokens(state: State, top: int | None = None) -> tuple[PromptToken, ...]:
    """What the request asks to see of its prompt: pieces that name the tokens, and made up log-probabilities."""
    wish = state.spec.wish
    top = wish.top if wish is not None else top
    scored = () if top is None else (-0.75, tuple(Alternative(each, -1.0, -1.0, b"<%d>" % each) for each in range(top)))
    return tuple(
        PromptToken(b"<%d>" % token, token == 1, *(scored if place else ()))
        for place, token in enumerate(state.spec.prompt)
    )


def decision(token: int, piece: bytes | None = None, hidden: bool = False) -> IssueDecision:
    return IssueDecision(selection(token), b"<%d>" % token if piece is None else piece, hidden)


@dataclass
class Live:
    """One job: its log, the state after each event, and the appends that carried them."""

    events: list[Event] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    fence: int = 0

    @classmethod
    def admit(cls, job: str = "job-1", /, **options: Any) -> Live:
        live, event = cls(), RequestAdmitted(job, request(**options))
        state = fold(None, event)
        live.append(Proposal((event,), (state,), state))
        return live

    @property
    def state(self) -> State:
        return self.states[-1]

    @property
    def transcript(self) -> Transcript:
        transcript = Transcript()
        for event, state in zip(self.events, self.states, strict=True):
            transcript.take(event, state)
        return transcript

    @property
    def row(self) -> JobRow:
        """The job as its listing should show it."""
        state, last = self.state, self.records[-1]
        finish = None if state.ending is None else str(state.ending.finish or state.ending.cause)
        return JobRow(
            job=state.spec.job,
            identity=state.spec.identity.hex(),
            model="tiny",
            status=state.status,
            finish=finish,
            prompt=state.frontier.prompt,
            output=state.frontier.output,
            head=Head(last.last, last.chain),
            fence=self.fence,
            owner=None,
            lease_until_ms=None,
            idempotency_key=None,
            created_ms=0,
        )

    def do(self, *commands: Command) -> Proposal:
        """Decide the commands as one proposal and append it, with the state after each event."""
        proposal = transitions(self.state, commands)
        match commands:
            case (CompleteCall() as made, IssueDecision() as choice, CommitOutput(receipt_id=None)):
                quicker = transitions(self.state, [TakeStep(made, choice)])
                assert (quicker.events, quicker.state) == (proposal.events, proposal.state)
        self.append(proposal)
        return proposal

    def append(self, proposal: Proposal) -> None:
        if proposal.events:
            self.records.append(self.record(proposal))
            self.events += proposal.events
            self.states += proposal.states

    def record(self, proposal: Proposal) -> Record:
        before = self.records[-1] if self.records else None
        first = len(self.events) + 1
        key = sha256(b"command %d" % first).digest()
        for event in proposal.events:
            if isinstance(event, DecisionMade):
                key = event.receipt.receipt_id
            elif isinstance(event, OutputCommitted) and self.state.receipt is not None:
                key = self.state.receipt.receipt_id
        link = (before.chain if before else EMPTY_HEAD.chain) + key + repr(proposal.events).encode()
        last = first + len(proposal.events) - 1
        return Record(first, last, self.fence, key, sha256(link).digest(), proposal.events)

    def attempt(self, fence: int = 1) -> None:
        self.fence = fence
        self.do(StartAttempt(fence, f"worker-{fence}", (("framework", "torch"),)))

    def rebuild(self, scores: bytes = b"", form: str = "prefill") -> None:
        """The lanes are back, all their rows from one call."""
        processed = self.state.frontier.processed
        self.do(RebuildLanes(form, processed, processed, scores))

    def turn(self, token: int, piece: bytes | None = None, hidden: bool = False) -> Proposal:
        """One token: the call where it is due, the decision and the commit, in one append."""
        first = () if self.state.status is Status.PREFILLED else (call(self.state),)
        return self.do(*first, decision(token, piece, hidden), CommitOutput())


Script = Callable[[int], IssueDecision]
"""What is decided at each step."""


def crank(live: Live, script: Script) -> None:
    """Do what `next_step` says until the job has ended, one command an append."""
    while (step := next_step(live.state)) is not Step.NOTHING:
        if step is Step.CALL:
            live.do(call(live.state))
        elif step is Step.DECIDE:
            live.do(script(live.state.frontier.output))
        elif step is Step.COMMIT:
            live.do(CommitOutput())
        elif reason := close_reason(live.state):
            live.do(CloseRequest(reason))
