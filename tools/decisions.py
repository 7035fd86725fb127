"""Write docs/reference/decisions.md: what was chosen between a score row and what a caller sees, as tables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from code_tables import described, fields_of, reasons, said

from decodelog.fsm import limits
from decodelog.fsm.evidence import rng
from decodelog.fsm.evidence.receipt import Receipt, Selection, identify
from decodelog.fsm.machine.events import EVENTS
from decodelog.fsm.machine.states import Trigger
from decodelog.fsm.machine.table import ROWS
from decodelog.fsm.reading.emission import Emission, Token
from decodelog.fsm.request import edges
from decodelog.fsm.request.admission import ADMISSION
from decodelog.fsm.request.draft import Draft
from decodelog.fsm.request.envelope import Output, Policy
from decodelog.fsm.request.finish import DEFAULT_ORDER, HELD_BACK, TRIGGERS
from decodelog.fsm.request.transforms import QUESTIONS, SEALED_ORDER
from decodelog.runtime.policy import scores, select
from decodelog.service.inspect.diagram import as_object

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "reference/decisions.md"
COUNTS = ("max_new_tokens", "zero_token_choice", "min_new_tokens", "logprobs", "seed", "choice", "deadline_ms")
SEED = 7  # of the examples

HEAD = """# Decisions

How a score row becomes a token, how a token becomes text, and how a job ends: each choice that was open, and the one
that is made here; at the end, an index of the design's decisions. `make docs` writes this page from the schema, the
tables and the docstrings of the code, and a test holds the two equal. The promises behind it are in
[the contract](contract.md), with the tests of each.
"""


def page() -> str:
    """The whole page. Deterministic: equal code gives equal bytes."""
    return HEAD + "".join(f"\n## {title}\n\n" + "\n".join(section()) for title, section in SECTIONS.items())


def table(*head: str, rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def code(names: str) -> str:
    """Names with commas between, each as code."""
    return ", ".join(f"`{name}`" for name in names.split(", "))


def named(documented: Any, *only: str) -> Iterator[tuple[str, str]]:
    """The names that a docstring lists, or some of them, with their words."""
    return ((code(name), words) for name, words in described(documented).items() if not only or name in only)


def transforms() -> Iterator[str]:
    yield """An envelope names its transforms in the order in which they are applied, and that may be any; this is the
order of drafts. Each equals the processor of the transformers library that stands beside it: tests compare the two on
random rows, alone and in other orders. Where scores are equal the library keeps all of them and this keeps the lowest
ids. Ids, biases and steps are sets, without repetition.
"""
    before = "before all of them, where `termination.min_new_tokens` is above 0"
    held = "Removes every end token and stop id until so many tokens are committed."
    rows = [("`min_new_tokens`", before, held, "`MinNewTokensLengthLogitsProcessor`")]
    for kind in SEALED_ORDER:
        equal = "the library has none" if kind.processor is None else f"`{kind.processor}`"
        rows.append((f"`{kind.tag()}`", fields_of(kind), said(kind), equal))
    yield table("transform", "fields", "what it does", "equals", rows=rows)
    yield "A draft asks for them by these. The scope of what looks back, where a draft names none, is as it is here.\n"
    yield table("keyword", "transform", "flag", "what the flag says", "else", rows=_keywords())


def _keywords() -> Iterator[Sequence[object]]:
    for keyword, (kind, field, asked, _) in QUESTIONS.items():
        flag = f"`{asked.flag or '--' + keyword.replace('_', '-')} {asked.metavar}`" if asked.words else "none"
        always = "".join(f", `{name}` `{value}`" for name, value in kind.always.items() if isinstance(value, str))
        otherwise = "off" if len(kind.asked()) == 1 else "as its flag says, where another of the transform is given"
        yield f"`{keyword}`", f"`{kind.tag()}`: `{field}`{always}", flag, asked.words or "for programs", otherwise


def numbers() -> Iterator[str]:
    yield f"{said(edges)} Tests hold each row at the kernels and at the sealing of drafts.\n"
    rows, last = [], ""
    for edge in edges.EDGES:
        drafted = "the same" if edge.drafted is edge.sealed else edge.drafted
        name = edge.kind if len(edge.question.transform.asked()) == 1 else edge.question.asked.keyword
        rows.append(("" if name == last else f"`{name}`", edge.words, edge.sealed, drafted))
        last = name
    yield table("number", "at", "in an envelope", "in a draft", rows=rows)
    yield "The counts of a draft:\n"
    yield table("count", "meaning", rows=named(Draft, *COUNTS))


def sampling() -> Iterator[str]:
    (tie,) = get_args(Policy.model_fields["tie_rule"].annotation)
    rows = [
        (f"`{tie}`", "Of equal scores the lower token id ranks higher: in the choice, and in every cut."),
        ("`greedy`", "The best score after the transforms. Nothing is drawn."),
        ("`sample`", said(select.draw)),
    ]
    yield table("rule", "meaning", rows=rows)
    yield f"{said(rng)}\n"
    yield table("generator", "where a draw comes from", rows=named(rng))
    domains = [(f"`{kind.tag()}`", kind.domain) for kind in SEALED_ORDER if kind.domain]
    yield "The choice of the token draws from domain 0; of the transforms these have one of their own.\n"
    yield table("transform", "domain", rows=domains)
    yield f"The first draws of seed {SEED}, branch and domain 0, for whoever wants to compute them:\n"
    yield table("generator", "choice", "step", "key or origin", "counter or state", "draw", rows=_draws())


def _draws() -> Iterator[Sequence[object]]:
    for algorithm in (rng.PHILOX, rng.SPLITMIX):
        for choice, step in ((0, 0), (0, 1), (1, 0)):
            key, counter = rng.draw_address(algorithm, SEED, choice, 0, step)
            words = (" ".join(map(str, each)) for each in (key, counter))
            yield f"`{algorithm}`", choice, step, *words, repr(rng.unit_draw(algorithm, SEED, choice, 0, step))


def finishes() -> Iterator[str]:
    yield """The first reason of this order that holds is the finish reason, and all that held are recorded with it. An
envelope may declare another order.
"""
    rows = [
        (rank, f"`{reason}`", TRIGGERS[reason], "held back" if reason in HELD_BACK else "not held back")
        for rank, reason in enumerate(DEFAULT_ORDER, 1)
    ]
    yield table("", "reason", "holds when", "before `min_new_tokens`", rows=rows)


def output() -> Iterator[str]:
    yield table("choice", "meaning", rows=named(Output))
    yield """A stream's items and a result hold the same tokens, text and offsets, and end at the same place. Usage
counts what the model made: tokens that a stop cut off are counted and not shown.
"""
    yield table("item of a stream", "what it is", rows=named(Emission))
    yield table("token", "what it is", rows=named(Token))


def receipt() -> Iterator[str]:
    yield """A receipt's id is the SHA-256 of all of these. An audit issues every receipt again from the log, and names
the first whose id is another.
"""
    rows = [*named(identify), *named(Selection)]
    rows += [row for row in named(Receipt) if row[0] != "`receipt_id`"]
    yield table("bound", "what it is", rows=rows)


def states() -> Iterator[str]:
    rows = []
    for state in as_object()["states"]:
        taken = [(trigger, target) for trigger, source, target in ROWS if source is state["state"]]
        moves = [f"`{trigger}` to {target}" for trigger, target in taken if target is not state["state"]]
        stays = [f"`{trigger}`" for trigger, target in taken if target is state["state"]]
        rows.append((state["state"], state["meaning"], *("; ".join(each) or "nothing" for each in (moves, stays))))
    yield table("state", "meaning", "moved by", "unmoved by", rows=rows)
    yield table("event", "what it records", rows=[(f"`{each}`", said(EVENTS[each.value])) for each in Trigger])


def ladder() -> Iterator[str]:
    yield """Before a model, a policy, a generator, a cache or a stream is touched, these are checked in this order, and
the first that fails is the one reported, by its name.
"""
    rows = [(number, f"`{name}`", said(fault)) for number, (name, fault) in enumerate(ADMISSION, 1)]
    yield table("", "check", "what must hold", rows=rows)


def bounds() -> Iterator[str]:
    yield "A bound exceeded is a typed rejection that names limit, value and maximum. Nothing is ever cut.\n"
    values = vars(limits)
    rows = [(f"`{name}`", f"{values[name]:,.0f}", reason) for name, reason in reasons(inspect.getsource(limits))]
    yield table("limit", "value", "reason", rows=rows)


def score_kinds() -> Iterator[str]:
    yield "A transform or a draw over another kind, vocabulary or map of it is an error, not a number.\n"
    every = (scores.Logits, scores.LogProbabilities, scores.Probabilities)
    rows = [(f"`{kind.__name__}`", said(kind), described(kind)["values"]) for kind in every]
    yield table("kind", "what it is", "values", rows=rows)
    yield table("stage", "what it is", rows=named(Selection, "logprob_raw", "logprob", "margin", "alternatives"))


def design() -> Iterator[str]:
    yield """The pages of docs/design say why the program is built as it is. Each of these decisions has its context,
the choice, its cost and its tests there.
"""
    rows = []
    for path in sorted((DOCS / "design").glob("*.md")):
        title, *decisions = re.findall(r"^##? (.+)$", path.read_text("utf-8"), flags=re.MULTILINE)
        rows += [(f"[{title}](../design/{path.name})", decision) for decision in decisions]
    yield table("page", "decision", rows=rows)


SECTIONS: Final = {
    "Transforms, in the order in which a draft seals them": transforms,
    "Numbers at their edges": numbers,
    "Ties, sampling and noise": sampling,
    "How a job ends": finishes,
    "What a caller gets": output,
    "What a receipt binds": receipt,
    "States and transitions": states,
    "Admission, in order": ladder,
    "Limits": bounds,
    "Kinds of scores, and stages of log-probabilities": score_kinds,
    "Design": design,
}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
