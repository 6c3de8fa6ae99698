"""The rows of the benchmark that compare with OpenVINO and ONNX Runtime, and the profile: a tiny model, few texts."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from helpers.models import randomise

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZES = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 12, "intermediate_size": 64}
SMALL = {"TEXTS": 8, "CALIBRATION_TEXTS": 4, "SORTED_BATCH_SIZE": 4, "CALLS": 2, "BATCH_SIZE": 4}


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Iterator:
    """The module `peers`, with a tiny BERT in the place of MiniLM."""
    folder = tmp_path_factory.mktemp("bert")
    bert = transformers.BertModel(transformers.BertConfig(**SIZES), add_pooling_layer=False)
    randomise(bert).save_pretrained(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        import peers

        patch.setattr("minilm.get_model_path", lambda: folder)
        patch.setattr("texts.BATCH_SIZE", 4)
        for name, value in SMALL.items():
            patch.setattr(peers, name, value)
        yield peers
        peers.models.cache_clear(), peers.engines.cache_clear()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_every_side_is_compared(small):
    row = small.peers(1, "cpu")
    types = small.our_types()
    ours = {f"plainformer {dtype}" for dtype in ("plain float32", *types)}
    peers = {f"OpenVINO {dtype}" for dtype in types} | {"ONNX Runtime float32", "ONNX Runtime int8"}
    assert set(row["sides"]) == ours | peers and set(row["pairs"]) == peers
    assert all(set(orders) == {"shuffled", "sorted", "finely sorted"} for orders in row["sides"].values())
    exact = {name for name, cosine in row["cosines"].items() if cosine > 0.99999}
    assert {name for name in row["sides"] if "float32" in name} <= exact
    assert "OpenVINO int8" not in exact and row["cosines"]["OpenVINO int8"] > 0.9  # it is int8
    written = [line.split(" | ")[0].strip("| ") for line in row["notes"] if line.startswith("| ")]
    assert ours | peers <= set(written)


def test_numbers_that_differ_stop_the_comparison(small, monkeypatch):
    monkeypatch.setitem(
        small.engines(), ("OpenVINO", "float32"), lambda batch: torch.randn(*batch["input_ids"].shape, 48)
    )
    with pytest.raises(RuntimeError, match="OpenVINO"):
        small.peers(1, "cpu")


def test_one_short_text(small):
    from texts import load_tokenizer

    assert len(load_tokenizer()(small.SHORT_TEXT)["input_ids"]) == 12
    row = small.latency(1, "cpu")
    assert {"BertModel float32", "plainformer int8", "OpenVINO int8"} <= set(row["sides"])
    assert all(set(one) == {"from tokens", "from text"} for one in row["sides"].values())
    expected = small.one_text_sides()["from text"]
    vectors = [expected[name]() for name in expected if "float32" in name[1]]
    for vector in vectors[1:]:
        torch.testing.assert_close(vector, vectors[0], rtol=0, atol=1e-4)


def test_the_profile_shares_out_the_time(small, monkeypatch, capsys):
    import profiles

    monkeypatch.setattr("sys.argv", ["profiles.py", "-n", "1"])
    profiles.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| BertModel", "| plainformer"))]
    assert len(rows) == 3 * (2 + len(small.our_types()))
    for row in rows:
        shares = [int(percent) for percent in re.findall(r"(\d+) %", row)]
        assert len(shares) == 6 and abs(sum(shares) - 100) <= 3
        assert shares[0] > 0, row  # products


@pytest.mark.parametrize(
    "operator, part",
    [
        ("aten::addmm", "products"),
        ("mkldnn::_linear_pointwise", "products"),
        ("onednn::qlinear_pointwise", "products"),
        ("aten::baddbmm", "attention"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::add_", "norms and sums"),
        ("aten::copy_", "layout and copies"),
        ("aten::t", "layout and copies"),
        ("aten::topk", "rest"),
        ("everything", "rest"),
    ],
)
def test_parts_of_operators(small, operator, part):
    from profiles import part_of

    assert part_of(operator) == part
