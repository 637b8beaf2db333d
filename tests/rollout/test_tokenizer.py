import pytest
from hypothesis import given, settings, strategies as st

from rollout.tokenizer import SPECIAL_TOKENS, Tokenizer

TEXTS = [
    "gallium: in which year was it discovered?",
    "search(query); open(hit); answer(value, document)",
    "def f(xs): return sum(x + 3 for x in xs if x > 4)",
    "1 gallium: history\n2 gallium: table\n3 indium: uses",
] * 3
TOKENIZER = Tokenizer.train(TEXTS, 420)


def test_special_tokens_have_the_first_ids():
    assert [TOKENIZER.spell(index) for index in range(8)] == list(SPECIAL_TOKENS)
    assert TOKENIZER.pad_id == 0
    assert TOKENIZER.end_id == 7


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_decoding_an_encoding_gives_any_text_back(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.lists(st.one_of(st.sampled_from(SPECIAL_TOKENS), st.text(max_size=8))))
@settings(max_examples=200, deadline=None)
def test_special_tokens_in_a_text_stay_ordinary_text(parts):
    token_ids = TOKENIZER.encode("".join(parts))
    assert not TOKENIZER.special_ids.intersection(token_ids)
    assert TOKENIZER.decode(token_ids) == "".join(parts)


def test_a_word_has_the_same_token_at_the_start_and_inside():
    (alone,) = TOKENIZER.encode("gallium")
    inside = TOKENIZER.encode("2 gallium: table")
    assert alone in inside


def test_digits_and_marks_are_never_merged():
    tokenizer = Tokenizer.train(["1875 (12), 3: 17. a[0]; b?"] * 50, 400)
    spelled = [tokenizer.spell(token_id) for token_id in tokenizer.encode("1875 (12).")]
    assert [token.strip() for token in spelled] == ["1", "8", "7", "5", "(", "1", "2", ")", "."]


def test_several_words_merge_into_one_token():
    tokenizer = Tokenizer.train(["in which year was it discovered?"] * 50, 400)
    assert len(tokenizer.encode("in which year was it discovered?")) == 2


def test_a_saved_tokenizer_is_the_same(tmp_path):
    TOKENIZER.save(tmp_path / "checkpoint")
    again = Tokenizer.load(tmp_path / "checkpoint")
    text = "answer <|end|> gallium: 1875"
    assert again.encode(text) == TOKENIZER.encode(text)
    assert again.vocabulary_size == TOKENIZER.vocabulary_size


def test_training_twice_gives_the_same_vocabulary(tmp_path):
    Tokenizer.train(TEXTS, 420).save(tmp_path / "a")
    Tokenizer.train(TEXTS, 420).save(tmp_path / "b")
    assert (tmp_path / "a/tokenizer.json").read_bytes() == (
        tmp_path / "b/tokenizer.json"
    ).read_bytes()


def test_a_missing_or_damaged_file_is_one_clear_line(tmp_path):
    with pytest.raises(ValueError, match=r"tokenizer\.json: no such file"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json: not a tokenizer"):
        Tokenizer.load(tmp_path)


def test_ids_that_mean_nothing_do_not_break_decoding():
    assert TOKENIZER.decode([*TOKENIZER.encode("a"), 999_999, TOKENIZER.end_id]) == "a"
    assert TOKENIZER.decode_all([TOKENIZER.end_id, 999_999]) == "<|end|><|999999|>"


def test_a_lone_surrogate_from_a_tool_does_not_stop_a_run():
    assert TOKENIZER.decode(TOKENIZER.encode("a\ud800b")) == "a?b"
