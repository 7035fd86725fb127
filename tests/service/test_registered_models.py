"""Submitting for a registered model, with neither its weights nor torch, and finding models by their digests."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commandline import decodelog, jobs
from databases import AnyStore, database_store, wall_clock_ms
from sqlalchemy import LargeBinary, cast, text, update
from tiny_checkpoint import TEMPLATE, checkpoint

import decodelog as package
from decodelog.fsm.errors import AmbiguousModel, CorruptModel, SchemaViolation, UnknownModel
from decodelog.fsm.request.draft import draft_from
from decodelog.fsm.request.seal import seal
from decodelog.runtime.grammar.parser import grammars_of
from decodelog.runtime.model.native import NativeModel
from decodelog.service.extras import EXTRA_OF
from decodelog.service.jobs.models import Models
from decodelog.service.jobs.registering import describe, register
from decodelog.service.jobs.submit import submit
from decodelog.store.database.connection import connected
from decodelog.store.database.tables import model_files, models

STATED = {"temperature": 0.6, "top_p": 0.9, "do_sample": True, "eos_token_id": 256}

DRAFTS: list[dict[str, Any]] = [
    {"prompt": "Once upon a time: é 日本"},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why? <|end|>"}]},
    {"messages": [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "on"}], "temperature": 0.5},
    {"token_ids": [1, 2, 3], "logprobs": 2, "n": 1, "compatibility": "exact"},
    {"prompt": "A book", "regex": "[a-z]+", "stop": ["x"]},
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("models") / "tiny", generation=STATED)


@pytest.fixture(scope="module")
def loaded(tiny: Path) -> NativeModel:
    return NativeModel(tiny, lanes=1)


@pytest.fixture
def here(tmp_path: Path) -> Models:
    """A process that has no model at all."""
    return Models(tmp_path / "nothing", lanes=1)


def without(*extras: str) -> str:
    """A program in which the packages of these extras are not installed, and that runs the command line."""
    missing = sorted(module for module, extra in EXTRA_OF.items() if extra in extras)
    return f"""
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, NotInstalled())
"""


def thin(*arguments: object, lacking: tuple[str, ...] = ("torch", "lab", "sign")) -> subprocess.CompletedProcess[str]:
    program = f"{without(*lacking)}\nfrom decodelog.__main__ import main\nmain()"
    return subprocess.run([sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True)


# ---- sealing -------------------------------------------------------------------------------------------------------


@pytest.mark.contract("ENV-4", "ENV-7")
def test_a_registered_model_seals_the_bytes_that_its_directory_does(
    store: AnyStore, tiny: Path, loaded: NativeModel, here: Models
) -> None:
    known = register(store, here, str(tiny), "prod")
    digest = known.registered.registration.artifact
    for given in ("prod", digest, digest[:12]):
        model, name = describe(store, here, given)
        assert name == given
        assert model.facts == loaded.facts
    for draft in map(draft_from, DRAFTS):
        sealed, ours = (seal(draft, of.facts, of.runtime, of.text, 7, 1_700_000_000_000) for of in (model, loaded))
        assert sealed.canonical_bytes() == ours.canonical_bytes()
        assert (sealed.identity, sealed.artifact_digest) == (ours.identity, digest)
    assert grammars_of(model).pieces == loaded.text.pieces


@pytest.mark.contract("ENV-7")
def test_registering_again_changes_nothing_and_a_name_means_the_newest(
    store: AnyStore, tiny: Path, tmp_path: Path, here: Models
) -> None:
    first = register(store, here, str(tiny), "prod")
    assert first.replaced is None
    assert register(store, here, str(tiny), "prod") == first
    assert register(store, here, str(tiny)).registered == first.registered
    other = register(store, here, str(checkpoint(tmp_path / "other", seed=2)), "prod")
    assert other.replaced == first.registered.registration.artifact
    assert [each.names for each in store.registrations()] == [(), ("prod",)]
    assert describe(store, here, "prod")[0].facts.artifact == other.registered.registration.artifact


@pytest.mark.contract("ENV-1")
def test_an_unknown_name_is_told_the_known_ones_and_a_bad_one_refused(
    store: AnyStore, tiny: Path, here: Models
) -> None:
    known = register(store, here, str(tiny), "prod").registered.registration
    for unknown in ("other", known.artifact[:7], "f" * 64, "a\0b", "", "x" * 5000):
        with pytest.raises(UnknownModel, match="register it in the database") as refused:
            describe(store, here, unknown)
        assert "prod" in refused.value.known
    for name in ("", "-x", "a/b", "~a", "abcdef01", known.artifact, "x" * 201):
        with pytest.raises((SchemaViolation, package.errors.LimitExceeded)):
            register(store, here, str(tiny), name)


@pytest.mark.contract("ENV-1")
def test_a_beginning_that_two_digests_have_names_neither(
    store: AnyStore, tiny: Path, here: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of seventeen, two begin with the same digit."""
    for module in ("coordination", "memory"):
        monkeypatch.setattr(f"decodelog.store.{module}.models.DIGEST_BEGINNING", re.compile("[0-9a-f]+"))
    known = register(store, here, str(tiny)).registered.registration
    twins = [replace(known, facts=replace(known.facts, release_id=f"release {number}")) for number in range(17)]
    for twin in twins:
        store.register(twin, store.text_files(known))
    digits = Counter(twin.artifact[0] for twin in [known, *twins])
    with pytest.raises(AmbiguousModel, match="give more of the one"):
        describe(store, here, digits.most_common(1)[0][0])


@pytest.mark.contract("ENV-9")
def test_a_model_is_missing_only_while_nobody_works_on_a_job_of_it(store: AnyStore, tiny: Path, here: Models) -> None:
    """One worker has looked for it in vain, and another one has it."""
    artifact = register(store, here, str(tiny), "prod").registered.registration.artifact
    described, name = describe(store, here, artifact[:12])
    job = submit(store, described, name, draft_from({"prompt": "Go"}), wall_clock_ms()).job
    wanted = store.row(job).wanted
    store.note_missing(wanted, "without")
    assert store.missing() == {wanted: "without"}
    (claim,) = store.claim("with it", 60_000, 1)
    assert store.missing() == {}
    store.note_missing(wanted, "without")
    store.release("with it", [claim.job])
    assert store.missing() == {wanted: "without"}
    store.note_missing(wanted, None)
    assert store.missing() == {}


# ---- damage --------------------------------------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[Any], Any]] = {
    "tokenizer": lambda known: (
        update(model_files)
        .where(model_files.c.sha256 == known.facts.tokenizer_sha256)
        .values(content=cast(b"{}", LargeBinary))
    ),
    "template": lambda known: (
        update(model_files)
        .where(model_files.c.sha256 == known.facts.template_sha256)
        .values(content=cast(TEMPLATE.encode() + b" ", LargeBinary))
    ),
    "missing": lambda known: model_files.delete().where(model_files.c.sha256 == known.facts.tokenizer_sha256),
    "record": lambda known: update(models).values(record=cast(known.record().replace(b"256", b"255"), LargeBinary)),
    "digest": lambda known: update(models).values(digest=cast(bytes(32), LargeBinary)),
    "artifact": lambda known: text(
        f"INSERT INTO models SELECT '{'f' * 64}', record, digest, registered_ms FROM models"
    ),
}


@pytest.mark.contract("LOG-3", "ENV-6")
@pytest.mark.parametrize("what", DAMAGE)
def test_registered_content_that_was_changed_is_refused(database_url: str, tiny: Path, here: Models, what: str) -> None:
    store = database_store(database_url)
    known = register(store, here, str(tiny), "prod").registered.registration
    with connected(database_url) as database, database.transaction() as connection:
        connection.execute(DAMAGE[what](known))
    with pytest.raises(CorruptModel, match="register it anew"):
        describe(store, here, "f" * 64 if what == "artifact" else "prod")[0].text.encode("a", add_special_tokens=True)
    if what != "artifact":
        register(store, here, str(tiny), "prod")
        fresh = Models(Path("nothing"), lanes=1)
        assert describe(store, fresh, "prod")[0].text.encode("a", add_special_tokens=True)
    store.close()


# ---- without weights -----------------------------------------------------------------------------------------------


@pytest.mark.contract("ENV-8")
def test_a_client_without_torch_submits_and_a_worker_finds_the_model(database_url: str, tiny: Path) -> None:
    """From the command line, on both databases."""
    digest = decodelog("model", "register", tiny, "--name", "prod", db=database_url).stdout.strip()
    given = ("--user", "Hi", "--max-new-tokens", 4, "--temperature", 0.5, "--seed", 7)
    for model in ("prod", digest[:16]):
        done = thin("submit", "--model", model, *given, "--db", database_url)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("generation_config.json is not followed (top_p 0.9)") == 1
    assert decodelog("submit", "--model", tiny, *given, db=database_url).code == 0
    rows = jobs(database_url)
    assert {row.identity for row in rows} == {rows[0].identity}
    assert {row.artifact for row in rows} == {digest}
    assert [row.model for row in rows] == ["prod", digest[:16], str(tiny)]
    refused = thin("submit", "--model", "other", *given, "--db", database_url)
    assert refused.returncode == 2
    assert "error[unknown_model]" in refused.stderr
    assert "decodelog model register DIR" in refused.stderr
    assert decodelog("worker", "--drain", "--models", tiny.parent, db=database_url).code == 0
    assert {row.finish for row in jobs(database_url)} == {"length"}


@pytest.mark.contract("ENV-8")
def test_the_base_installation_submits_ids_and_names_what_text_takes(sqlite_url: str, tiny: Path) -> None:
    with package.open(sqlite_url) as log:
        log.register_model(tiny, "prod")
    program = f"""{without(*set(EXTRA_OF.values()))}
import decodelog
with decodelog.open({sqlite_url!r}) as log:
    job = log.submit("prod", token_ids=[1, 2, 3], max_new_tokens=2)
    print([each.names for each in log.registered_models()], job.state)
    try:
        log.submit("prod", prompt="a")
    except decodelog.errors.ExtraMissing as missing:
        print(missing.extra)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[('prod',)] ADMITTED\nclient\n", done.stderr
    with package.open(sqlite_url) as log:
        log.worker(models=[tiny]).drain()
        assert log.job("@last").result(timeout=0).usage.completion_tokens == 2
