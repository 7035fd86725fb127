"""A snapshot that cannot be written leaves its job, and what lies at its place, as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_snapshot_files import Stage, scripted, store

from decodelog.fsm.errors import Problem, UnwritableOutput
from decodelog.service.archive.snapshot import FORMS

pytestmark = pytest.mark.contract("RES-1", "RES-2", "RES-4")

__all__ = ["scripted", "store"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("place", "force"),
    [
        *(("there", False), ("folder", False), ("folder", True), ("nowhere/job.dlog", False)),
        *(("nowhere/job.dlog", True), ("there/job.dlog", True)),
    ],
)
def test_a_refused_file_leaves_the_job_as_it_is(
    scripted: Stage, tmp_path: Path, form: str, place: str, force: bool
) -> None:
    (tmp_path / "there").write_text("x")
    (tmp_path / "folder").mkdir()
    job = scripted.submit()
    scripted.run(job, until=4)
    before = scripted.store.row(job), scripted.events(job), sorted(tmp_path.iterdir())
    with pytest.raises(UnwritableOutput):
        scripted.take(job, tmp_path / place, form=form, force=force)
    assert (scripted.store.row(job), scripted.events(job), sorted(tmp_path.iterdir())) == before


def test_a_file_that_cannot_be_written_whole_is_not_there(scripted: Stage, tmp_path: Path) -> None:
    job = scripted.submit()
    (tmp_path / "there").write_text("x")
    with pytest.raises(UnwritableOutput):
        scripted.take(job, tmp_path / "there")
    assert (tmp_path / "there").read_text() == "x"
    with pytest.raises(Problem):
        scripted.take("nobody", tmp_path / "new")
    assert sorted(path.name for path in tmp_path.glob(".export*")) == []
