"""The functions of the standard library: what is read, how it is numbered, and what the LSTM makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence

from quorate.core.errors import ConfigurationError
from quorate.workloads import stdlib_corpus
from quorate.workloads.drawing import drawn
from quorate.workloads.stdlib_functions import FunctionClassifier, StdlibFunctions, length_lines

SOURCE = b"""
class Shape:
    def area(self):  # of it
        return 1.5

    async def wait(self):
        def inner(x): return "a b-c"
        return inner

if True:
    def area(): pass
"""

EVERYTHING = stdlib_corpus.Selection(modules=None, limit=None, longest=8, smallest_class=2, vocabulary_size=64)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A small standard library with everything that has to be left out, skipped or grouped."""
    for path, text in {
        "big.py": b"def a(): pass\ndef b(): pass\ndef c(): pass\n",
        "pack/__init__.py": b"def d(x): return x\n",
        "pack/deep/more.py": b"def e(x): return [x, x, x, x, x]\n",
        "lonely.py": b"def f(): pass\n",
        "empty.py": b"",
        "broken.py": b"def g(:\n",
        "null.py": b"def g(): pass\0\n",
        "encoded.py": b"# coding: no-such-coding\ndef g(): pass\n",
        "latin.py": b"# coding: utf-8\ndef g(): '\xff'\n",
        "open.py": b"def g(): pass\nx = (\n",
        "test/test_big.py": b"def g(): pass\n",
        "pack/tests/test_deep.py": b"def g(): pass\n",
        "site-packages/other.py": b"def g(): pass\n",
    }.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)
    return tmp_path


def test_functions_at_every_depth_with_their_words() -> None:
    found = stdlib_corpus.functions_in("shape.py", SOURCE)
    assert [(function.name, function.outermost) for function in found] == [
        ("Shape.area", "Shape.area"),
        ("Shape.wait", "Shape.wait"),
        ("Shape.wait.inner", "Shape.wait"),
        ("area", "area"),
    ]
    assert " ".join(found[0].words) == "def area ( self ) : # of it return 1.5"
    assert " ".join(found[2].words) == 'def inner ( x ) : return " a b - c "'
    assert set(found[2].words) <= set(found[1].words)
    assert found[0].module == "shape"


def test_a_nested_function_is_on_the_side_of_the_one_around_it() -> None:
    text = "".join(f"def outer{i}():\n    def inner(): pass\n" for i in range(200))
    found = stdlib_corpus.functions_in("pairs.py", text.encode())
    assert all(outer.is_test == inner.is_test for outer, inner in zip(found[::2], found[1::2], strict=True))
    assert 5 <= sum(function.is_test for function in found[::2]) <= 40


def test_the_split_never_moves() -> None:
    assert stdlib_corpus.stable_hash("json/decoder.py:JSONDecoder.decode") == 9679154170074571749


def test_what_is_read_skipped_and_grouped(library: Path) -> None:
    paths = stdlib_corpus.source_paths(library)
    assert not any("test" in path or "site-packages" in path for path in paths)
    built = stdlib_corpus.build(library, paths, EVERYTHING)
    assert built.skipped == ("broken.py", "encoded.py", "latin.py", "null.py", "open.py")
    assert built.files == 5
    assert built.classes == ("big", "pack", "other")
    assert [built.classes[label] for label in built.labels] == ["big"] * 3 + ["other"] + ["pack"] * 2
    assert built.lengths.max() == EVERYTHING.longest
    assert built.offsets[-1] == len(built.words)


def test_modules_and_limit_select(library: Path) -> None:
    assert stdlib_corpus.source_paths(library, ["pack"]) == ["pack/__init__.py", "pack/deep/more.py"]
    with pytest.raises(ConfigurationError, match='unknown standard-library module "pak"; did you mean "pack"'):
        stdlib_corpus.source_paths(library, ["pak"])
    limited = stdlib_corpus.Selection(modules=None, limit=4, longest=8, smallest_class=2, vocabulary_size=64)
    assert len(stdlib_corpus.build(library, stdlib_corpus.source_paths(library), limited).labels) == 4


def test_the_vocabulary_is_of_frequent_words_in_a_fixed_order() -> None:
    counts = {"b": 5, "a": 5, "z": 9, "rare": stdlib_corpus.RARE - 1}
    first = len(stdlib_corpus.RARE_CLASSES)
    assert stdlib_corpus.vocabulary_of(counts, 1000)[first:] == ("z", "a", "b")
    assert stdlib_corpus.vocabulary_of(counts, first + 2)[first:] == ("z", "a")
    numbers = stdlib_corpus.numbers_of(stdlib_corpus.vocabulary_of(counts, 1000))
    assert stdlib_corpus.encode(["z", "rare"], numbers) == [first, numbers["<name, short>"]]
    assert numbers[stdlib_corpus.PADDING] == 0


def test_the_vocabulary_knows_training_functions_only(tmp_path: Path) -> None:
    text = "".join(f"def f{i}(word{i}): return word{i} + word{i}\n" for i in range(50))
    (tmp_path / "file.py").write_text(text)
    wide = stdlib_corpus.Selection(modules=None, limit=None, longest=99, smallest_class=1, vocabulary_size=500)
    built = stdlib_corpus.build(tmp_path, ["file.py"], wide)
    assert 0 < int(built.is_test.sum()) < 25
    known = [f"word{i}" in built.vocabulary for i in range(50)]
    assert known == [not is_test for is_test in built.is_test.tolist()]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("spam", "<name, short>"),
        ("spam_and_eggs", "<many_words, long>"),
        ("_hidden", "<_name, medium>"),
        ("__spam__", "<__name__, medium>"),
        ("MAX_SIZE", "<NAME, medium>"),
        ("CamelCaseWord", "<Name, long>"),
        ("0x1F", "<number, short>"),
        (".5", "<number, short>"),
        ("été", "<other letters, short>"),
        ("->", "<signs, short>"),
        ("_", "<signs, short>"),
        (".", "<signs, short>"),
    ],
)
def test_rare_words_are_known_by_their_shape(word: str, expected: str) -> None:
    assert stdlib_corpus.shape_class(word) == expected
    assert expected in stdlib_corpus.RARE_CLASSES


def test_the_lstm_equals_one_over_a_packed_sequence() -> None:
    model = drawn(lambda: FunctionClassifier(50, 4, embedding=6, hidden=5), seed=1)
    lengths = torch.tensor([3, 9, 1])
    words = torch.randint(1, 50, (3, 9), generator=torch.Generator().manual_seed(0))
    words[torch.arange(9) >= lengths.unsqueeze(1)] = 0
    labels = torch.tensor([0, 1, 2])
    packed = pack_padded_sequence(model.embedding(words), lengths, batch_first=True, enforce_sorted=False)
    expected = cross_entropy(model.output(model.lstm(packed)[1][0][-1]), labels)
    loss = cross_entropy(model(words, lengths), labels)
    torch.testing.assert_close(loss, expected)
    parameters = list(model.parameters())
    torch.testing.assert_close(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters))


def test_real_functions_come_with_their_module() -> None:
    workload = StdlibFunctions(modules=("json", "colorsys"), smallest_class=8, use_cache=False)
    assert workload.corpus.classes == ("json", "other")
    train, test = workload.dataset(train=True), workload.dataset(train=False)
    assert len(train) + len(test) == len(workload.corpus.labels)
    batch = workload.collate([train[0], train[5]])
    assert batch.items.shape == (2, int(batch.lengths.max()))
    assert (batch.items > 0).sum(1).tolist() == batch.lengths.tolist() == [len(train[0][0]), len(train[5][0])]


def test_every_example_is_the_text_of_its_function() -> None:
    workload = StdlibFunctions(modules=("json", "colorsys"), smallest_class=1, use_cache=False)
    folder = stdlib_corpus.standard_library()
    written = [
        function
        for path in stdlib_corpus.source_paths(folder, workload.modules)
        for function in stdlib_corpus.functions_in(path, (folder / path).read_bytes())
    ]
    numbers = stdlib_corpus.numbers_of(workload.corpus.vocabulary)
    for train in (True, False):
        data = workload.dataset(train=train)
        expected = [function for function in written if function.is_test != train]
        assert len(data) == len(expected) > 0
        assert data.lengths.tolist() == [len(function.words) for function in expected]
        for (words, label), function in zip((data[i] for i in range(len(data))), expected, strict=True):
            assert words.tolist() == stdlib_corpus.encode(function.words, numbers)
            assert workload.corpus.classes[label] == function.module


def test_the_length_report() -> None:
    lines = length_lines(torch.tensor([1, 2, 3, 3, 100]))
    assert lines[0] == "tokens per function: mean 21.8, median 3, p90 61, p99 96, max 100, all 109"
    assert lines[1].split() == ["1", "to", "1", "1", "#############"]
    assert lines[2].split() == ["2", "to", "3", "3", "#" * 40]
    assert len(lines) == 1 + 7


@pytest.mark.parametrize(
    "settings", [{"limit": 0}, {"longest": 0}, {"vocabulary_size": 3}, {"vocabulary_size": 2**15 + 1}, {"hidden": 0}]
)
def test_settings_out_of_range_are_refused(settings: dict[str, int]) -> None:
    (name,) = settings
    with pytest.raises(ConfigurationError, match=f"stdlib-functions: {name} must be at (least|most)"):
        StdlibFunctions(**settings)
