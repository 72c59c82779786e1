"""Messages speak to whoever asked: keywords to Python, flags to a shell; a foreign name finds ours by meaning."""

from __future__ import annotations

import pytest
from commands import lpi

import localpolicy as lp
from localpolicy.errors import ConfigError, DataError, as_keywords, deprecated, nearest, on_command_line
from localpolicy.runs.config import config_of


@pytest.mark.parametrize(
    ("flags", "keywords"),
    [
        ("Map it with --columns item_id=NAME, or so.", 'Map it with columns={"item_id": "NAME"}, or so.'),
        ("every row with --event click.", 'every row with event="click".'),
        ("Add it (--rewards 'cart=0.5')", 'Add it (rewards={"cart": 0.5})'),
        ("such as --rewards '>=4=1,*=0'", 'such as rewards=">=4=1,*=0"'),
        ("name them, such as --rename 0=view,1=cart", 'name them, such as rename={"0": "view", "1": "cart"}'),
        ("Continue with --resume: RUN", "Continue with resume=True: RUN"),
        ("train with --set train.min_history=0, then", "train with min_history=0, then"),
        ("say where it is with --data.", "say where it is with data=."),
        ("judge what it showed: --against log.", 'judge what it showed: against="log".'),
        ("'lpi export RUN --out X' makes one", "'lpi export RUN --out X' makes one"),
    ],
)
def test_options_are_keywords_to_python(flags, keywords):
    assert as_keywords(flags) == keywords
    with on_command_line():
        assert str(DataError(flags)) == flags
    assert str(DataError(flags)) == keywords


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("user_id", ["item_id", "sequence_id"], "sequence_id"),
        ("random_state", ["warm_start", "seed"], "seed"),
        ("train.lr", ["train.learning_rate", "train.epochs"], "train.learning_rate"),
        ("batch", ["batch_size", "beta"], "batch_size"),
        ("wdith", ["width", "blocks"], "width"),
    ],
)
def test_the_nearest_name_is_the_one_that_means_the_same(given, known, meant):
    assert f"did you mean '{meant}'?" in nearest(given, known)


def test_settings_speak_our_words():
    with pytest.raises(ConfigError, match=r"^bta: no such key \(did you mean 'beta'\?\)$"):
        lp.LPI(bta=1)
    with pytest.raises(ConfigError, match=r"^beta: expected a number greater than 0, got -1$"):
        lp.LPI(beta=-1)
    with pytest.raises(ConfigError, match=r"^train.epochs: expected a whole number, got 'x'$"):
        config_of("mle", epochs="x")
    with pytest.raises(ConfigError, match="random_state.*did you mean 'seed'"):
        config_of("mle", random_state=1)


def test_a_ratings_file_gets_all_remedies_at_once(tmp_path):
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,2,3.5,1000000000\n")
    with pytest.raises(DataError) as caught:
        lp.prepare(tmp_path / "ratings.csv", out=tmp_path / "data")
    said = str(caught.value)
    assert 'columns={"sequence_id": "userId", "item_id": "movieId", "event": "rating"}' in said
    assert 'rewards=">=4=1,>=3=0.5,*=0"' in said
    done = lpi("prepare", "events", tmp_path / "ratings.csv", "--out", tmp_path / "data")
    assert done.returncode == 2
    assert "--columns sequence_id=userId,item_id=movieId,event=rating" in done.stderr
    assert "--rewards '>=4=1,>=3=0.5,*=0'" in done.stderr


def test_a_deprecation_warns_each_caller_and_is_printed_once_on_stderr(caplog):
    with pytest.warns(
        DeprecationWarning, match=r"^old= is deprecated and will be removed in version 9\.9: use new=\.$"
    ) as seen:
        deprecated("--old", instead="--new", until="9.9")
    with on_command_line(), pytest.warns(DeprecationWarning, match="^--old is deprecated .* use --new"):
        deprecated("--old", instead="--new", until="9.9")
    with pytest.warns(DeprecationWarning, match="^old= is"):
        deprecated("--old", instead="--new", until="9.9")
    assert len(seen) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2  # once as keywords, once as flags
