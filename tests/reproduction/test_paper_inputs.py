"""Where a table's data comes from: original files are recognised and prepared once, simulated ones made once."""

from __future__ import annotations

import pytest
from small_logs import write_small

from localpolicy.data.readers import READERS
from localpolicy.errors import ConfigError, DataError
from localpolicy.reproduction.data_sets import data_sets
from localpolicy.reproduction.settings import PaperConfig
from localpolicy.runtime.files import read_json, sealed, write_json
from localpolicy.simulation import simulate


def test_original_files_are_recognised_and_prepared_once(tmp_path, messages):
    simulate("retailrocket", tmp_path / "raw", sequences=3_000, items=60)
    (first,) = data_sets(PaperConfig(data=(tmp_path / "raw",)), tmp_path / "out", "table3")
    assert (first.name, first.source, first.original) == ("retailrocket", "retailrocket", False)
    assert messages("localpolicy.reproduction.data_sets")[0].startswith("preparing retailrocket")
    (again,) = data_sets(PaperConfig(data=(tmp_path / "raw" / "events.csv",)), tmp_path / "out", "table3")
    assert again.data.digest == first.data.digest
    assert len(messages("localpolicy.reproduction.data_sets")) == 1
    with (tmp_path / "raw" / "events.csv").open("a") as file:
        file.write("1430622000000,1,view,1,\n")
    with pytest.raises(DataError, match="prepared from other files"):
        data_sets(PaperConfig(data=(tmp_path / "raw",)), tmp_path / "out", "table3")
    with pytest.raises(ConfigError, match="called 'data-retailrocket'"):
        data_sets(PaperConfig(data=(first.data.path, first.data.path)), tmp_path / "new", "table3")


def test_a_simulated_set_is_made_once_and_not_mixed_up(tmp_path):
    (first,) = data_sets(PaperConfig(simulate="store", sequences=200, items=40), tmp_path, "table3")
    assert first.folder == "store-simulated"
    assert first.data.kind == "interactions"
    (again,) = data_sets(PaperConfig(simulate="store", sequences=200, items=40), tmp_path, "table3")
    assert again.data.digest == first.data.digest
    with pytest.raises(DataError, match="other settings"):
        data_sets(PaperConfig(simulate="store", sequences=201, items=40), tmp_path, "table3")


def test_data_with_the_originals_rows_is_the_papers(tmp_path):
    (simulated,) = data_sets(PaperConfig(simulate="retailrocket", sequences=3_000, items=60), tmp_path, "table3")
    assert not simulated.original
    assert "not the paper's data" in simulated.about
    assert not (tmp_path / "raw-retailrocket").exists()  # only what is needed stays


def test_movielens_is_never_the_papers_data(tmp_path):
    """Whole as it may be: the paper's ratings are the Netflix Prize's."""
    data = write_small(tmp_path / "data")
    manifest = read_json(data.path / "manifest.json")
    for source, papers in (("movielens", False), ("netflix", True)):
        whole = next(edition.rows for edition in READERS[source].editions)
        altered = {**manifest, "source": source, "rows": {"ratings": whole}}
        write_json(data.path / "manifest.json", sealed(altered))
        (found,) = data_sets(PaperConfig(data=(data.path,)), tmp_path / "out", "table3")
        assert found.original == papers
        assert ("not the paper's data" in found.about) != papers
