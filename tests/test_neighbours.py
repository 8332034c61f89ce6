"""The neighbour search is a brute force in float64, sorted by (similarity, index), whatever the
tiles and whoever asks.
"""

import copy
import os
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assay.neighbours import Vectors, nearest
from assay.registry import UnknownName
from loops import for_each
from searches import (
    PATHS,
    Rows,
    Search,
    along,
    as_held,
    common_offset,
    draw_search,
    dtype_for,
    every_kind,
    every_path,
    every_restriction,
    every_similarity,
    exact_score,
    gaussian,
    rows_for,
    scaled,
    ties,
    vectors_for,
)

few_examples = settings(max_examples=10, deadline=None)
seeds = st.integers(0, 2**31)
every_float_similarity = for_each("similarity", ["cosine", "dot", "euclidean"])


def random_rows(count: int, dim: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def assert_everyone_else_is_found_in_order(z: Tensor, similarity: str) -> None:
    """With places for all, and with more of them than there are places."""
    for k, path in [(len(z) - 1, "as it comes"), (5, "few places")]:
        others = [[other for other in range(len(z)) if other != own][:k] for own in range(len(z))]
        with along(path):
            assert nearest(z, z, k, torch.arange(len(z)), similarity=similarity).tolist() == others


def run_apart(code: str, **environment: str) -> None:
    """Run in a Python of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


# --- Against a brute force ---


@every_kind
@given(seed=seeds)
@few_examples
def test_equals_a_brute_force(
    kind: Callable[[random.Random, int], Rows], similarity: str, seed: int
) -> None:
    draw = random.Random(seed)
    search = draw_search(draw, kind, similarity)
    with along(draw.choice(list(PATHS))):
        search.assert_found()


@every_similarity
@for_each("k", [1, 60, 120])
def test_equals_a_brute_force_in_more_references_than_there_are_places(
    similarity: str, k: int
) -> None:
    draw, dtype = random.Random(k), dtype_for(similarity)
    references, queries = (as_held(rows_for(similarity, draw, count), dtype) for count in (120, 4))
    Search(queries, references, k, similarity, dtype=dtype).assert_found()


@every_similarity
def test_references_that_are_all_equal_are_found_in_order_of_their_index(similarity: str) -> None:
    references = rows_for(similarity, random.Random(0), 1) * 100
    search = Search(
        rows_for(similarity, random.Random(1), 3),
        references,
        7,
        similarity,
        dtype=dtype_for(similarity),
    )
    assert search.found() == [list(range(7))] * 3


@for_each("spread", [2.0**-20, 2.0**-30, 2.0**-40], ids=["1e-6", "1e-9", "1e-12"])
@for_each("k", [1, 10, 100])
@every_float_similarity
def test_tells_apart_what_single_precision_cannot(similarity: str, k: int, spread: float) -> None:
    """A hundred references along a line, with steps that a query sees from the side."""
    draw = random.Random(0)
    references = [
        (1.0 + spread * step, 0.5, -0.75 - spread * step)
        for step in (draw.randrange(80) for _ in range(100))
    ]
    search = Search(
        [(3.0, 0.0, 2.0), (-1.0, 1.0, 0.5), (0.0, -2.0, 0.25)], references, k, similarity
    )
    assert len(search.clear()) == 3
    search.assert_found()


def test_vectors_far_from_the_origin_are_compared_by_what_they_do_not_share() -> None:
    rows = common_offset(random.Random(3), 90)
    search = Search(rows, rows, 89, "euclidean", exclude=list(range(90)), dtype=torch.float32)
    assert len(search.clear()) == 90
    search.assert_found()


@for_each("dim", [31, 32, 33, 64, 100, 700])
@every_float_similarity
def test_any_number_of_dimensions_will_do(similarity: str, dim: int) -> None:
    rows = [tuple(row) for row in random_rows(50, dim, seed=dim).tolist()]
    Search(rows[:5], rows[5:], 45, similarity, dtype=torch.float32).assert_found()


@every_float_similarity
def test_constant_vectors_are_found_in_order_of_their_index(similarity: str) -> None:
    assert_everyone_else_is_found_in_order(torch.full((50, 3), 0.1), similarity)


@every_float_similarity
def test_vectors_of_zeros_are_found_in_order_of_their_index(similarity: str) -> None:
    assert_everyone_else_is_found_in_order(torch.zeros(50, 3), similarity)


def test_a_vector_of_zeros_is_between_what_is_alike_and_what_is_opposite() -> None:
    z = torch.tensor([[-1.0, 0], [0, 0], [2, 0]])
    assert nearest(z, z, 3).tolist() == [[0, 1, 2], [0, 1, 2], [2, 1, 0]]


def test_a_negative_zero_is_a_zero() -> None:
    assert_everyone_else_is_found_in_order(
        torch.tensor([[-0.0, -0.0], [0.0, 0.0]]).repeat(25, 1), "cosine"
    )


@for_each("side", ["queries", "references", "both"])
@for_each(
    ("exponent", "dtype"),
    [
        (40, torch.float32),
        (66, torch.float32),
        (100, torch.float32),
        (520, torch.float64),
        (600, torch.float64),
    ],
)
def test_norms_do_not_matter_to_the_cosine(exponent: int, dtype: torch.dtype, side: str) -> None:
    """Some vectors are scaled by powers of two, which change no digit of their direction."""
    draw = random.Random(2)
    rows = as_held(gaussian(draw, 60), torch.float32)
    before = Search(rows[:10], rows[10:], 50, dtype=dtype).found()
    after = scaled(draw, rows, [-exponent, 0, exponent])
    queries, references = (
        (rows if side == "references" else after)[:10],
        (rows if side == "queries" else after)[10:],
    )
    for path in ("as it comes", "few places"):
        with along(path):
            assert Search(queries, references, 50, dtype=dtype).found() == before


@pytest.mark.parametrize("exponent", [-600, -520, 520, 600])
def test_norms_do_not_matter_where_precision_runs_out(exponent: int) -> None:
    """Squares of such numbers have few digits left, or none."""
    draw = random.Random(5)
    references = [
        (1.0 + 2.0**-40 * step, 0.5, -0.75) for step in (draw.randrange(900) for _ in range(60))
    ]
    search = Search([(3.0, 0.0, 2.0), (-1.0, 1.0, 0.5)], references, 3)
    large = Search(search.queries, scaled(draw, references, [exponent]), 3)
    with along("few places"):
        assert large.found() == search.found() == list(search.clear().values())


@pytest.mark.parametrize("path", ["as it comes", "few places"])
@pytest.mark.parametrize(
    ("similarity", "exponent"), [("dot", 100), ("dot", 600), ("euclidean", 100), ("euclidean", 240)]
)
def test_norms_of_all_sizes_are_compared(similarity: str, exponent: int, path: str) -> None:
    """By their products with other vectors, and by their distance from the origin."""
    draw = random.Random(4)
    references = scaled(draw, ties(draw, 60), [-exponent, -1, 0, 1, exponent])
    search = Search(
        ties(draw, 6) if similarity == "dot" else [(0.0,) * 4], references, 60, similarity
    )
    with along(path):
        assert search.found() == search.brute_force(exact_score)


@for_each("path", ["as it comes", "few places"])
@for_each("exponent", [20, 60, 90, 250, 600, 1000])
def test_outliers_do_not_blur_the_others(exponent: int, path: str) -> None:
    """On two sides, so that the middle is where the others are: products that overflow are not to
    be trusted.
    """
    z = random_rows(40, 3, torch.float64)
    far = 2.0**exponent * torch.tensor([[-1.0, 0, 0], [1, 0, 0]], dtype=torch.float64)
    expected = nearest(z, z, 40, similarity="euclidean")
    with along(path):
        assert torch.equal(nearest(z, torch.cat([z, far]), 40, similarity="euclidean"), expected)


@pytest.mark.parametrize("index", ["ip", "l2"])
def test_faiss_finds_the_same(index: str) -> None:
    import faiss

    z = random_rows(400, 24)
    z = torch.nn.functional.normalize(z) if index == "ip" else z
    flat = (faiss.IndexFlatIP if index == "ip" else faiss.IndexFlatL2)(24)
    flat.add(z.numpy())
    theirs = flat.search(z[:100].numpy(), 10)[1]
    ours = nearest(z[:100], z, 10, similarity="cosine" if index == "ip" else "euclidean")
    assert [set(row) for row in ours.tolist()] == [set(row) for row in theirs.tolist()]


def test_faiss_finds_the_same_distances_between_bits() -> None:
    import faiss

    bits = np.random.default_rng(0).integers(0, 256, (400, 8), dtype=np.uint8)
    flat = faiss.IndexBinaryFlat(64)
    flat.add(bits)
    ours = nearest(bits[:50], bits, 10, similarity="hamming").numpy()
    distances = np.unpackbits(bits[:50, None] ^ bits[ours], axis=2).sum(2)
    assert distances.tolist() == flat.search(bits[:50], 10)[0].tolist()


# --- How it goes does not matter ---


@every_path
@every_similarity
def test_tiles_places_and_buffers_do_not_matter(similarity: str, path: str) -> None:
    z = vectors_for(similarity, 30)
    for wanted in every_restriction(30):
        expected = nearest(z, z, 9, similarity=similarity, **wanted)
        with along(path):
            for references in (z, z.clone()):
                found = nearest(z, references, 9, similarity=similarity, **wanted)
                assert torch.equal(found, expected), wanted


@every_path
@for_each("spread", [1e-7, 1e-12, 0.0])
def test_paths_do_not_matter_where_precision_runs_out(spread: float, path: str) -> None:
    """Most queries are left open in single precision, and some in double precision."""
    z = random_rows(1, 6, torch.float64) + spread * random_rows(45, 6, torch.float64, seed=1).round(
        decimals=1
    )
    whole = [nearest(z, z, k, torch.arange(45)) for k in (1, 9, 44)]
    with along(path):
        assert all(
            map(torch.equal, whole, [nearest(z, z, k, torch.arange(45)) for k in (1, 9, 44)])
        )


@pytest.mark.parametrize("path", ["few places", "few places and small tiles"])
def test_paths_do_not_matter_to_a_query_far_away(path: str) -> None:
    references = torch.cat(
        [1 + 1e-9 * torch.arange(20, dtype=torch.float64), -torch.ones(20, dtype=torch.float64)]
    )[:, None]
    query = torch.tensor([[1e17]], dtype=torch.float64)
    whole = nearest(query, references, 1, similarity="euclidean")
    with along(path):
        assert torch.equal(nearest(query, references, 1, similarity="euclidean"), whole)


@every_similarity
def test_a_query_does_not_depend_on_the_queries_beside_it(similarity: str) -> None:
    references, queries = vectors_for(similarity, 60), vectors_for(similarity, 9, seed=1)
    together = nearest(queries, references, 15, similarity=similarity)
    alone = torch.cat(
        [nearest(query[None], references, 15, similarity=similarity) for query in queries]
    )
    assert torch.equal(together, alone)


@pytest.fixture
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@every_similarity
def test_the_number_of_threads_does_not_matter(similarity: str) -> None:
    z = vectors_for(similarity, 600)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(nearest(z, z, 10, torch.arange(600), similarity=similarity))
    assert torch.equal(*found)


@pytest.mark.usefixtures("_threads")
def test_long_duplicates_are_found_in_order_of_their_index() -> None:
    torch.set_num_threads(2)
    rows = random_rows(3, 100_000)
    found = [
        nearest(query[None], rows[:1].repeat(21, 1), 21, similarity=similarity).tolist()
        for similarity in ("cosine", "dot", "euclidean")
        for query in rows[1:]
    ]
    assert found == [[list(range(21))]] * 6


# --- What counts ---


def test_those_that_do_not_count_leave_the_rest_of_a_row_empty() -> None:
    z, camera = torch.eye(4), torch.tensor([0, 0, 0, 1])
    found = nearest(z, z, 3, counts=lambda q, r: camera[q] != camera[r])
    assert found.tolist() == [[3, -1, -1], [3, -1, -1], [3, -1, -1], [0, 1, 2]]


def test_what_is_left_out_does_not_count_either() -> None:
    z, label = torch.eye(4), torch.tensor([0, 0, 1, 1])
    found = nearest(z, z, 2, torch.arange(4), counts=lambda q, r: label[q] == label[r])
    assert found.tolist() == [[1, -1], [0, -1], [3, -1], [2, -1]]


@every_path
@every_similarity
def test_nobody_may_count(similarity: str, path: str) -> None:
    z = vectors_for(similarity, 50)
    with along(path):
        found = nearest(z, z, 3, similarity=similarity, counts=lambda q, r: (q < 0) & (r < 0))
    assert found.tolist() == [[-1, -1, -1]] * 50


@every_path
def test_junk_is_never_found(path: str) -> None:
    z, junk = vectors_for("cosine", 60), torch.arange(60) % 4 == 1
    with along(path):
        found = nearest(z, z, 30, counts=lambda q, r: ~junk[r])
    clean = (~junk).nonzero()[:, 0]
    assert torch.equal(found, clean[nearest(z, z[clean], 30)])


@every_path
@every_similarity
def test_counts_is_asked_about_indices_of_shapes_that_broadcast(similarity: str, path: str) -> None:
    queries, references = vectors_for(similarity, 30), vectors_for(similarity, 50, seed=1)

    def counts(query: Tensor, reference: Tensor) -> Tensor:
        assert query.dtype == reference.dtype == torch.long
        assert 0 <= int(query.min()) <= int(query.max()) < 30
        assert 0 <= int(reference.min()) <= int(reference.max()) < 50
        return ((query + reference) % 7 > 0).expand(
            torch.broadcast_shapes(query.shape, reference.shape)
        )

    with along(path):
        nearest(queries, references, 20, similarity=similarity, counts=counts)


@every_path
@for_each("form", [Tensor.int, Tensor.numpy, Tensor.tolist])
def test_what_counts_may_be_told_in_any_form(form: Callable[[Tensor], Any], path: str) -> None:
    z, own = vectors_for("cosine", 40), torch.arange(40)
    with along(path):
        assert torch.equal(
            nearest(z, z, 9, counts=lambda q, r: form(q != r)), nearest(z, z, 9, own)
        )


def test_one_truth_may_be_told_of_all() -> None:
    z = vectors_for("cosine", 40)
    with along("in candidates"):
        assert torch.equal(nearest(z, z, 9, counts=lambda q, r: True), nearest(z, z, 9))
        assert (nearest(z, z, 9, counts=lambda q, r: False) == -1).all()


def test_what_does_not_count_costs_no_more_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """No two products are near each other, and single precision must do, though most references do
    not count.
    """
    z, label = random_rows(64, 8), torch.arange(64) % 4
    monkeypatch.setattr(
        "assay.neighbours.search.exhaustive",
        lambda *_: pytest.fail("all pairs are compared one by one"),
    )
    with along("few places and small tiles"):
        nearest(z, z, 1, counts=lambda q, r: label[q] == label[r])


@every_path
def test_one_that_counts_is_found_however_far_down(path: str) -> None:
    z, wanted = random_rows(80, 5), torch.arange(79, -1, -1)
    with along(path):
        found = nearest(z, z, 2, counts=lambda q, r: wanted[q] == r)
    assert found.tolist() == [[int(one), -1] for one in wanted]


def test_where_places_run_out_nobody_is_left_out_by_minus_one() -> None:
    """The last reference is the best by less than products can tell: -1 must not mean the last."""
    references = torch.ones(100, 1, dtype=torch.float64)
    references[-1] += 2**-52
    query = torch.ones(1, 1, dtype=torch.float64)
    assert nearest(query, references, 1, [-1], similarity="dot").tolist() == [[99]]


# --- Numbers of any kind ---


def _read_only(z: np.ndarray) -> np.ndarray:
    z = z.copy()
    z.flags.writeable = False
    return z


NUMPY_KINDS = ("f2", "f4", "f8", "g", "i1", "i4", "i8", "u1", "u2", "u8")

FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "lists": lambda z: z.tolist(),
    "tuples": lambda z: tuple(map(tuple, z.tolist())),
    **{f"numpy {kind}": partial(np.ndarray.astype, dtype=kind) for kind in NUMPY_KINDS},
    **{
        f"big-endian {kind}": partial(np.ndarray.astype, dtype=kind)
        for kind in (">f2", ">f4", ">f8", ">i2", ">u4")
    },
    "column by column": np.asfortranarray,
    "every second column": lambda z: np.repeat(z, 2, axis=1)[:, ::2],
    "backwards": lambda z: z[::-1].copy()[::-1],
    "read-only": _read_only,
    "matrix": lambda z: z.view(np.matrix),
    **{
        f"torch {kind}": partial(torch.tensor, dtype=getattr(torch, kind))
        for kind in ("float16", "bfloat16", "float32", "float64", "int8", "int64", "uint8")
    },
    "tensor column by column": lambda z: torch.tensor(z.T.copy()).T,
    "every second column of a tensor": lambda z: torch.tensor(np.repeat(z, 2, axis=1))[:, ::2],
    "parameter": lambda z: torch.nn.Parameter(torch.tensor(z)),
    "result": lambda z: torch.tensor(z, requires_grad=True) * 1,
    "vectors": Vectors,
    "chosen vectors": lambda z: Vectors(
        np.concatenate([z[:3], z]), chosen=torch.arange(3, len(z) + 3)
    ),
}


@pytest.fixture
def small_numbers() -> np.ndarray:
    """Whole numbers that any type can hold, some rows more than once."""
    z = np.random.default_rng(0).integers(0, 16, (50, 3)).astype(np.float32)
    return z[np.random.default_rng(1).integers(0, 50, 60)]


@for_each("form", FORMS)
@every_float_similarity
def test_the_same_numbers_in_any_form_have_the_same_neighbours(
    similarity: str, form: str, small_numbers: np.ndarray
) -> None:
    expected = nearest(
        torch.tensor(small_numbers), torch.tensor(small_numbers), 5, similarity=similarity
    )
    z = FORMS[form](small_numbers)
    for found in (
        nearest(z, z, 5, similarity=similarity),
        nearest(z, small_numbers, 5, similarity=similarity),
        nearest(small_numbers, z, 5, similarity=similarity),
    ):
        assert torch.equal(found, expected)
        assert not found.requires_grad


@for_each(
    "form",
    ["numpy f4", "numpy f8", "column by column", "torch float32", "torch float64", "parameter"],
)
@every_float_similarity
def test_vectors_are_left_as_they_were(
    similarity: str, form: str, small_numbers: np.ndarray
) -> None:
    z = FORMS[form](small_numbers)
    before = copy.deepcopy(z)
    nearest(z, z, 5, torch.arange(60), similarity=similarity)
    assert (z == before).all()


@pytest.mark.parametrize("form", [np.asarray, torch.tensor, np.asfortranarray, _read_only])
def test_bits_may_be_packed_into_arrays_and_tensors(form: Callable[[np.ndarray], Any]) -> None:
    bits = np.random.default_rng(0).integers(0, 256, (50, 3), dtype=np.uint8)
    packed = form(bits.copy())
    assert torch.equal(
        nearest(packed, packed, 9, similarity="hamming"),
        nearest(bits, bits.copy(), 9, similarity="hamming"),
    )
    assert bits.tolist() == packed.tolist()


@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f8", "<f2"])
def test_a_file_is_read_where_it_lies_and_left_alone(
    kind: str, tmp_path: Path, small_numbers: np.ndarray
) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(small_numbers.astype(kind).tobytes())
    path.chmod(0o444)
    before = path.read_bytes()
    z = np.memmap(path, dtype=kind, mode="r", shape=small_numbers.shape)
    assert torch.equal(
        nearest(z, z, 5, np.arange(60)), nearest(small_numbers, small_numbers, 5, np.arange(60))
    )
    assert path.read_bytes() == before


def test_a_chosen_part_of_vectors_is_searched_as_if_it_were_all() -> None:
    z, chosen = vectors_for("cosine", 80), torch.arange(79, 0, -2)
    part = Vectors(z, chosen=chosen)
    own = torch.arange(40)
    assert torch.equal(nearest(part, part, 9, own), nearest(z[chosen], z[chosen], 9, own))


def test_a_part_may_be_chosen_of_vectors() -> None:
    z, some, fewer = random_rows(9, 2), torch.tensor([8, 2, 4, 6]), torch.tensor([3, 0])
    assert torch.equal(Vectors(Vectors(z), chosen=some).read(slice(0, 4)), z[some])
    assert torch.equal(
        Vectors(Vectors(z, chosen=some), chosen=fewer).read(slice(0, 2)), z[some][fewer]
    )
    assert torch.equal(Vectors(Vectors(z, chosen=some)).read(slice(0, 4)), z[some])


def test_bfloat16_vectors_may_all_be_equal() -> None:
    assert_everyone_else_is_found_in_order(torch.ones(50, 3, dtype=torch.bfloat16), "cosine")


def test_large_unsigned_numbers_are_large() -> None:
    assert nearest(
        [[1]], np.array([[1], [2**63]], dtype=np.uint64), 1, similarity="dot"
    ).tolist() == [[1]]


@pytest.mark.parametrize("kind", ["i8", "i4", "i1", "u8", ">i8"])
def test_indices_to_leave_out_may_be_of_any_integer_type(kind: str) -> None:
    z = vectors_for("cosine", 50)
    assert torch.equal(
        nearest(z, z, 9, np.arange(50).astype(kind)), nearest(z, z, 9, torch.arange(50))
    )
    assert torch.equal(
        nearest(z, z, 9, list(range(50))), nearest(z, z, 9, torch.arange(50, dtype=torch.int32))
    )


def test_indices_to_leave_out_may_be_read_only() -> None:
    z = vectors_for("cosine", 50)
    assert torch.equal(
        nearest(z, z, 9, _read_only(np.arange(50))), nearest(z, z, 9, torch.arange(50))
    )


# --- The caller's settings ---


SETTINGS = """
import torch
from assay.neighbours import nearest, target_ranks
z = torch.randn(300, 64, generator=torch.Generator().manual_seed(0))
targets = torch.arange(300).flip(0)
def all_found():
    found = []
    for similarity in ("cosine", "dot", "euclidean"):
        found.append(nearest(z, z, 300, similarity=similarity))
        found.append(target_ranks(z, z, targets, similarity=similarity)[:, None])
    return torch.cat(found, 1)
expected = all_found()
"""


def test_shortcuts_the_caller_allows_are_not_taken_here() -> None:
    code = """
with torch.autocast("cpu", dtype=torch.bfloat16):
    assert (z @ z.T).dtype == torch.bfloat16
    assert torch.equal(all_found(), expected)
    assert (z @ z.T).dtype == torch.bfloat16
for precision in ("high", "medium"):
    torch.set_float32_matmul_precision(precision)
    inside = []
    def note(stage, done, total):
        inside.append(torch.get_float32_matmul_precision())
    nearest(z, z, 1, progress=note)
    assert set(inside) == {"highest"}
    assert torch.equal(all_found(), expected)
    assert torch.get_float32_matmul_precision() == precision
    try:
        nearest(z, z, 1, counts=lambda q, r: 1 / 0)
    except ZeroDivisionError:
        assert torch.get_float32_matmul_precision() == precision
"""
    run_apart(SETTINGS + code, ONEDNN_MAX_CPU_ISA="AVX512_CORE_BF16")


def test_precision_may_be_set_for_a_backend() -> None:
    code = """
torch.backends.mkldnn.matmul.fp32_precision = "bf16"
inside = []
def note(stage, done, total):
    inside.append(torch.backends.mkldnn.matmul.fp32_precision)
nearest(z, z, 1, progress=note)
assert set(inside) == {"ieee"}
assert torch.equal(all_found(), expected)
assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
"""
    run_apart(SETTINGS + code, ONEDNN_MAX_CPU_ISA="AVX512_CORE_BF16")


@pytest.mark.parametrize("path", ["as it comes", "in candidates", "both sides"])
@every_float_similarity
def test_denormal_numbers_may_be_flushed_to_zero(similarity: str, path: str) -> None:
    z = torch.tensor([[0.0, 0], [1, 0], [0, 1]]).repeat(8, 1)
    expected = nearest(z, z, 2, similarity=similarity)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush them")
    try:
        with along(path):
            assert torch.equal(nearest(z, z, 2, similarity=similarity), expected)
    finally:
        torch.set_flush_denormal(False)


def test_other_defaults_of_torch_do_not_matter() -> None:
    z = vectors_for("cosine", 60)
    expected = nearest(z, z, 20)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(nearest(z, z, 20), expected)
        with torch.inference_mode():
            assert torch.equal(nearest(z, z, 20), expected)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)


# --- Progress and memory ---


@pytest.mark.parametrize(
    ("path", "spread"),
    [
        ("as it comes", 1.0),
        ("small tiles", 1.0),
        ("both sides", 1.0),
        ("a few rows at a time", 1.0),
        ("small buffers", 1.0),
        ("both sides in few places", 0.0),
    ],
)
def test_progress_rises_to_its_total(path: str, spread: float) -> None:
    z = torch.ones(100, 4) + spread * random_rows(100, 4)
    calls: list[tuple[int, int]] = []
    with along(path):
        nearest(
            z, z, 3, torch.arange(100), progress=lambda _, done, total: calls.append((done, total))
        )
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert len({total for _, total in calls}) == 1
    assert calls[-1][0] == calls[-1][1]


def test_progress_is_made_where_products_overflow() -> None:
    z = torch.tensor([[-1.0], [0.0], [1e-156], [2e-156], [3e-156], [1.0]], dtype=torch.float64)
    calls: list[tuple[int, int]] = []
    nearest(
        z, z, 1, similarity="euclidean", progress=lambda _, done, total: calls.append((done, total))
    )
    assert calls[-1][0] == calls[-1][1]


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="peaks of memory are read from Linux"
)
def test_memory_does_not_grow_with_the_number_of_pairs() -> None:
    """Not by `resource.getrusage`: that remembers the parent's peak."""
    code = """
import re
from pathlib import Path
import torch
from assay.neighbours import nearest, target_ranks
def peak():
    return int(re.search("VmHWM:\\\\s+(\\\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
z = torch.randn(20_000, 16, generator=torch.Generator().manual_seed(0))
few = z[:1000]
nearest(few, few, 5, torch.arange(1000)), target_ranks(few, few, torch.arange(1000))
before = peak()
nearest(z, z, 5, torch.arange(20_000))
target_ranks(z[:5000], z, torch.arange(5000))
assert peak() - before < 150, f"{peak() - before:.0f} MB"
"""
    run_apart(code, OMP_NUM_THREADS="1")


# --- Bad input ---


@pytest.mark.parametrize("side", ["queries", "references"])
@pytest.mark.parametrize("form", [torch.clone, Tensor.numpy, Tensor.double, Tensor.half])
def test_rows_that_are_not_finite_are_named(form: Callable[[Tensor], Any], side: str) -> None:
    good, bad = random_rows(9, 3), random_rows(9, 3)
    bad[3, 1] = torch.nan
    with pytest.raises(ValueError, match=f"row 3 of the {side}"):
        nearest(*((form(bad), good) if side == "queries" else (good, form(bad))), 2)
    bad[7, 0], bad[8] = torch.inf, -torch.inf
    with pytest.raises(ValueError, match=f"row 3 and 2 other rows of the {side}"):
        nearest(*((form(bad), good) if side == "queries" else (good, form(bad))), 2)


def test_a_chosen_row_that_is_not_finite_is_named_by_its_place_among_all() -> None:
    z = random_rows(9, 3)
    z[7, 1] = torch.nan
    with pytest.raises(ValueError, match="row 7 of the queries"):
        nearest(Vectors(z, chosen=torch.tensor([1, 7, 2])), z[:3], 2)


def test_large_numbers_are_finite() -> None:
    z = torch.tensor([[1e300, 0], [0, 1e300], [1e300, 1e300]], dtype=torch.float64)
    assert nearest(z, z, 1).tolist() == [[0], [1], [2]]


def test_sides_of_different_dimensions_raise_with_the_numbers() -> None:
    with pytest.raises(ValueError, match="queries have 3 dimensions, but references 2"):
        nearest(torch.eye(3), torch.eye(2), 1)


@for_each("k", [-1, 0, 6])
@every_similarity
def test_a_k_that_cannot_be_served_raises_with_the_numbers(similarity: str, k: int) -> None:
    z = vectors_for(similarity, 5)
    with pytest.raises(ValueError, match=rf"k is {k}, but a query has 5 references"):
        nearest(z, z, k, similarity=similarity)


def test_a_k_that_counts_the_left_out_reference_raises_with_the_numbers() -> None:
    z = torch.eye(5)
    with pytest.raises(ValueError, match="k is 5, but a query has 4 references"):
        nearest(z, z, 5, torch.arange(5))


def test_a_query_that_leaves_one_out_may_find_one_fewer_than_the_others() -> None:
    assert nearest(torch.eye(3), torch.eye(3), 3, [-1, 1, -1]).tolist() == [
        [0, 1, 2],
        [0, 2, -1],
        [2, 0, 1],
    ]


@every_similarity
def test_a_search_in_nothing_raises(similarity: str) -> None:
    z = vectors_for(similarity, 5)
    with pytest.raises(ValueError, match="no references"):
        nearest(z, z[:0], 1, similarity=similarity)


@every_similarity
def test_nobody_has_no_neighbours(similarity: str) -> None:
    z = vectors_for(similarity, 5)
    assert nearest(z[:0], z, 2, similarity=similarity).shape == (0, 2)


@for_each(
    ("vectors", "told"),
    [
        (np.zeros(3), r"shape \(N, D\), got \(3,\)"),
        (np.zeros((2, 3, 4)), r"shape \(N, D\), got \(2, 3, 4\)"),
        (torch.zeros(3), r"shape \(N, D\), got \(3,\)"),
        (np.zeros((3, 0)), "no dimensions"),
        (np.eye(3, dtype=complex), "real numbers, got complex128"),
        (torch.eye(3, dtype=torch.complex64), "real numbers, got torch.complex64"),
        (np.eye(3, dtype=bool), "real numbers, got bool"),
        (torch.eye(3, dtype=torch.bool), "real numbers, got torch.bool"),
        ([["a", "b"]], "real numbers, got <U1"),
        ([[None, None]], "real numbers, got object"),
    ],
)
def test_what_is_no_matrix_of_numbers_raises(vectors: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        nearest(vectors, vectors, 1)
    with pytest.raises(ValueError, match=told):
        nearest(np.eye(3), vectors, 1)


@pytest.mark.parametrize(
    ("exclude", "told"),
    [
        ([0, 1], "exclude has 2 entries; 3 queries"),
        (
            [[0], [1], [2]],
            r"exclude are whole numbers of shape \(N,\), got int64 of shape \(3, 1\)",
        ),
        ([0, 1, 3], "holds 0 to 3; references are 0 to 2"),
        ([-2, 1, 2], "holds -2 to 2; references are 0 to 2"),
        ([True, False, True], "exclude are whole numbers.*got bool"),
        ([0.5, 1.5, 2.5], "exclude are whole numbers.*got float64"),
    ],
)
def test_references_to_leave_out_that_cannot_be_raise_with_the_numbers(
    exclude: Any, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        nearest(torch.eye(3), torch.eye(3), 1, exclude)


def test_an_unknown_similarity_suggests_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match="did you mean 'euclidean'"):
        nearest(torch.eye(3), torch.eye(3), 1, similarity="euclidian")
