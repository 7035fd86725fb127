"""A snapshot with rows is taken with the model that the job is bound to, and with no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import script
from test_snapshot_files import Stage, store

from decodelog.fsm.errors import NotAdmissible
from decodelog.service.archive.snapshot import FORMS
from decodelog.service.jobs.models import Models, home
from decodelog.store.engine import DatabaseStore

pytestmark = pytest.mark.contract("ENV-6", "RES-2")

__all__ = ["store"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("until", [3, None])
def test_a_model_that_is_another_one_by_now_takes_no_snapshot(
    form: str, until: int | None, store: DatabaseStore, tmp_path: Path
) -> None:
    model = script(tmp_path / "model", script={"text": "Grain by grain."})
    stage = Stage(store, str(model), {"prompt": "say", "max_new_tokens": 30})
    job = stage.submit()
    stage.run(job, until=until)
    head, file = store.row(job).head, tmp_path / "job.dlog"
    script(tmp_path / "model", script={"text": "Grain after grain."})
    stage.models = Models(home(), lanes=1)
    with pytest.raises(NotAdmissible):
        stage.take(job, file, form=form)
    assert not file.exists()
    assert (store.row(job).head, store.row(job).owner) == (head, None)
