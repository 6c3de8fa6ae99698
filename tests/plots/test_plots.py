"""Pictures: their data, against formulas written here; what kinds do not have; and the commands of docs/figures.md."""

import importlib.util
import re
import shlex
import warnings
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.colors import CenteredNorm
from transformers.models.t5.modeling_t5 import T5Attention

from plainformer import (
    PlainformerConfig,
    PlainformerForConditionalGeneration,
    PlainformerModel,
    PlainformerSeq2SeqConfig,
    plots,
    train_tokenizer,
)
from plainformer.plots import labels
from plainformer.positions_plainformer import POSITION_KINDS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
COMMANDS = {line.split()[0]: line for line in re.findall(r"^python scripts/plot\.py (.+)$", PAGE, re.MULTILINE)}
NEED_A_MODEL = ("attention_maps", "cross_attention")
OF_VECTORS = [
    plots.plot_position_table,
    plots.plot_position_curves,
    plots.plot_position_waves,
    plots.plot_position_frequencies,
    plots.plot_position_path,
    plots.plot_position_similarity,
    plots.plot_similarity_by_distance,
]
SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = "the cat sat on the mat"


@pytest.fixture(autouse=True)
def no_window():
    """Figures are made in memory, and closed."""
    matplotlib.use("agg")
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("plot", ROOT / "scripts" / "plot.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([TEXT, "我们 在 河边"], vocab_size=60, show_progress=False)


def config(kind: str = "sinusoidal", **fields) -> PlainformerConfig:
    return PlainformerConfig(**{**SIZES, **fields}, position_embedding_type=kind)


def sinusoids(length: int, width: int, base: float = 10000.0) -> np.ndarray:
    """The formula of the paper, in float64."""
    position, column = np.arange(length)[:, None], np.arange(width)[None]
    angle = position / base ** (column // 2 * 2 / width)
    return np.where(column % 2, np.cos(angle), np.sin(angle))


def cosines(vectors: np.ndarray) -> np.ndarray:
    sizes = np.linalg.norm(vectors, axis=1)
    return vectors @ vectors.T / np.outer(sizes, sizes)


def image_of(ax) -> np.ndarray:
    (image,) = ax.images
    return np.asarray(image.get_array())


def close(actual, expected) -> None:
    np.testing.assert_allclose(np.asarray(actual, dtype=float), expected, atol=2e-6)


# The printed commands


def check_table(ax):
    close(image_of(ax), sinusoids(64, 64))
    assert isinstance(ax.images[0].norm, CenteredNorm)  # white is 0


def check_curves(ax):
    for line, dimension in zip(ax.lines, (8, 9, 16, 17), strict=True):
        close(line.get_ydata(), sinusoids(64, 64)[:, dimension])


def check_waves(ax):
    """Every second line is a wave, around its height; from the last dimension up to the first."""
    dimensions = [int(label.get_text()) for label in ax.get_yticklabels()]
    assert dimensions == sorted(dimensions, reverse=True) and dimensions[-1] == 0 and len(dimensions) == 6
    for height, (wave, dimension) in enumerate(zip(ax.lines[1::2], dimensions, strict=True)):
        close((wave.get_ydata() - height) * 2.4, sinusoids(200, 64)[:, dimension])


def check_frequencies(ax):
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 10000.0 ** -(np.arange(0, 64, 2) / 64), rtol=1e-5)
    assert ax.get_yscale() == "log"


def check_path(ax):
    assert ax.name == "3d"
    close(np.stack(ax.lines[0].get_data_3d(), axis=1), sinusoids(80, 64)[:, [8, 9, 32]])


def check_similarity(ax):
    close(image_of(ax), cosines(sinusoids(64, 64)))


def check_by_distance(axes):
    sinusoidal, learned = axes
    close(sinusoidal.lines[0].get_ydata(), cosines(sinusoids(64, 64))[0, :63])
    bands = [ax.collections[0].get_paths()[0].vertices for ax in axes]
    ranges = [np.ptp(band[band[:, 0] == 20, 1]) for band in bands]  # at one distance
    assert ranges[0] < 1e-5 < 0.1 < ranges[1]
    assert "not trained" in learned.get_title() and "not trained" not in sinusoidal.get_title()


def check_scores(axes):
    rotary, alibi, relative, none = axes
    distance = np.arange(-63, 64)
    angle = distance[:, None] / 10000.0 ** (np.arange(0, 64, 2) / 64)
    close(rotary.lines[0].get_ydata(), np.cos(angle).mean(axis=1))
    for head in range(4):
        close(alibi.lines[head].get_ydata(), -np.abs(distance) * 2.0 ** (-2 * (head + 1)))
    buckets = T5Attention._relative_position_bucket(torch.tensor(distance), num_buckets=32, max_distance=128)
    drawn = np.stack([line.get_ydata() for line in relative.lines[:4]])
    for bucket in buckets.unique():
        assert (np.ptp(drawn[:, buckets == bucket], axis=1) == 0).all()
    assert len(np.unique(drawn[0])) == len(buckets.unique())
    assert "no position enters" in none.texts[0].get_text().replace("\n", " ")


def check_sizes(ax):
    """Of an initial spread of 0.02, in 512 dimensions: half of the squares of a sinusoid are 1."""
    token, position, total = ([bar.get_height() for bar in bars] for bars in ax.containers[1::2])
    np.testing.assert_allclose(token, (0.02 * 512**0.5, 0.02 * 512), rtol=0.01)
    np.testing.assert_allclose(position, 256**0.5, rtol=1e-5)
    np.testing.assert_allclose(total, np.hypot(token, position), rtol=0.01)


def check_mask(ax):
    expected = np.tril(np.ones((8, 8)))
    expected[:, 6:] = 0
    close(ax.collections[0].get_array().reshape(8, 8), expected)


def check_batch(axes):
    lengths, speeds = (26, 7, 13, 4, 9, 18), axes[2]
    padded, computed = (ax.collections[0].get_array() for ax in axes[:2])
    assert [int((row >= 0).sum()) for row in padded.reshape(6, 26)] == list(lengths)
    assert sorted(computed.compressed()) == sorted(np.repeat(np.arange(6), lengths))
    assert computed.size == 3 * 26  # cells of the same size as above
    measured = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert len(speeds.patches) == 3
    assert all(re.search(rf"\| {bar.get_width():.2f} \|", measured) for bar in speeds.patches)


CHECKS = {
    "position_table": check_table,
    "position_curves": check_curves,
    "position_waves": check_waves,
    "position_frequencies": check_frequencies,
    "position_path": check_path,
    "position_similarity": check_similarity,
    "similarity_by_distance": check_by_distance,
    "scores_by_distance": check_scores,
    "embedding_sizes": check_sizes,
    "causal_mask": check_mask,
    "real_tokens": check_batch,
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_printed_command_draws_what_the_formula_gives(name, script, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "save_plot", lambda axes, path: drawn.append(axes))
    monkeypatch.chdir(ROOT)
    script.main(shlex.split(COMMANDS[name]))
    CHECKS[name](*drawn)


def test_every_figure_has_its_command_and_its_place_in_the_page(script):
    figures = {path.stem for path in (ROOT / "docs" / "figures").iterdir()}
    assert figures == set(COMMANDS) == set(script.PICTURES) == {*CHECKS, *NEED_A_MODEL}
    for name, command in COMMANDS.items():
        file = f"figures/{name}.png"
        assert command.endswith(f"--output docs/{file}") and f"]({file})" in PAGE
        assert (ROOT / "docs" / file).stat().st_size < 150_000, file
    for target in re.findall(r"\]\((?!http)([^)#]+)", PAGE):
        assert (ROOT / "docs" / target).exists(), target


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    assert [path.name for path in tmp_path.iterdir()] == ["positions.png"]


# Attention


def test_attention_maps_are_the_weights_of_the_model_with_its_tokens(tokenizer):
    model = PlainformerModel(config("rotary")).train()
    axes = plots.plot_attention_maps(model, tokenizer, TEXT, layers=[1], heads=[0, 3])
    assert model.training and axes.shape == (1, 2)
    inputs = tokenizer(TEXT, return_tensors="pt")
    weights = model.eval()(**inputs, output_attentions=True).attentions[1][0].detach()
    tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    for ax, head in zip(axes[0], (0, 3), strict=True):
        close(image_of(ax), weights[head].numpy())
        assert [label.get_text() for label in ax.get_xticklabels()] == tokens
        assert ax.images[0].get_clim() == axes[0, 0].images[0].get_clim()  # one scale for all
    assert isinstance(plots.plot_attention_maps(model, tokenizer, TEXT, [0], [1]), plt.Axes)


def test_cross_attention_goes_from_the_tokens_written_to_those_read(tokenizer):
    ids = {"decoder_start_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    model = PlainformerForConditionalGeneration(PlainformerSeq2SeqConfig(**SIZES, **ids)).eval()
    model.generation_config.max_length = 6
    axes = plots.plot_cross_attention(model, tokenizer, TEXT)
    assert axes.shape == (2, 4)
    inputs = tokenizer(TEXT, return_tensors="pt")
    written = model.generate(**inputs, do_sample=False)
    output = model(**inputs, decoder_input_ids=written[:, :-1], output_attentions=True, use_cache=False)
    close(image_of(axes[1, 2]), output.cross_attentions[1][0, 2].detach().numpy())
    labels_of_rows = [label.get_text() for label in axes[0, 0].get_yticklabels()]
    assert labels_of_rows == tokenizer.convert_ids_to_tokens(written[0, 1:])


# Kinds, languages, axes


@pytest.mark.parametrize("draw", OF_VECTORS, ids=lambda draw: draw.__name__)
@pytest.mark.parametrize("kind", POSITION_KINDS)
def test_every_kind_is_drawn_or_says_what_it_does_not_have(kind, draw):
    has_vectors = kind in ("learned", "sinusoidal", "rotary")
    if has_vectors and (kind, draw) != ("learned", plots.plot_position_frequencies):
        assert f"({kind}" in draw(config(kind)).get_title()
    else:
        with pytest.raises(ValueError, match=f"position_embedding_type='{kind}' has no"):
            draw(config(kind))


@pytest.mark.parametrize("kind", POSITION_KINDS)
def test_scores_and_sizes_of_every_kind(kind):
    plots.plot_embedding_sizes(config(kind))
    if kind in ("rotary", "alibi", "relative"):
        plots.plot_scores_by_distance(config(kind), layer=1)
    else:
        with pytest.raises(ValueError, match=f"'{kind}' does nothing to attention scores"):
            plots.plot_scores_by_distance(config(kind))


def test_rotary_is_drawn_with_its_own_base():
    line = plots.plot_position_frequencies(config("rotary", rope_theta=500.0)).lines[0]
    np.testing.assert_allclose(line.get_ydata(), 500.0 ** -(np.arange(0, 8, 2) / 8), rtol=1e-5)


def test_a_trained_model_shows_its_own_table():
    model = PlainformerModel(config("learned"))
    ax = plots.plot_position_table(model, length=10)
    close(image_of(ax), model.embeddings.position_embeddings.weight[:10].detach().numpy())
    assert ax.get_title() == "Position vectors (learned)"


@pytest.mark.skipif(labels.find_chinese_font() is None, reason="no font with Chinese characters")
def test_labels_in_chinese_have_all_their_glyphs(tokenizer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for draw in OF_VECTORS:
            draw(config(), language="zh").figure.canvas.draw()
        plots.plot_scores_by_distance(config("relative"), language="zh").figure.canvas.draw()
        plots.plot_embedding_sizes(config(), language="zh").figure.canvas.draw()
        plots.plot_causal_mask(PlainformerSeq2SeqConfig(**SIZES), num_padding=1, language="zh")
        ax = plots.plot_attention_maps(PlainformerModel(config()), tokenizer, "我们", [0], [0], language="zh")
        ax.figure.canvas.draw()
    assert "我" in [label.get_text() for label in ax.get_xticklabels()]


def test_every_word_has_its_chinese():
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "plainformer" / "plots").glob("*.py"))
    used = set(re.findall(r'words\("([^"]+)"', source))
    assert len(used) > 20 and used <= set(labels.CHINESE)


def test_without_a_chinese_font_a_line_says_so(monkeypatch, tokenizer):
    monkeypatch.setattr(labels, "CHINESE_FONTS", ())
    with pytest.warns(UserWarning, match="no font with Chinese characters.*fonts-noto-cjk"):
        assert plots.plot_position_table(config(), language="zh").get_xlabel() == "dimension"
    with pytest.warns(UserWarning, match="by number"):
        ax = plots.plot_attention_maps(PlainformerModel(config()), tokenizer, "我们", [0], [0])
    assert "U+6211" in [label.get_text() for label in ax.get_xticklabels()]


def test_axes_of_yours_are_used_and_wrong_ones_refused(tokenizer):
    figure = plt.figure()
    flat, space = figure.add_subplot(121), figure.add_subplot(122, projection="3d")
    assert plots.plot_position_table(config(), ax=flat) is flat
    assert plots.plot_position_path(config(), ax=space) is space
    with pytest.raises(ValueError, match=r'make it with fig.add_subplot\(projection="3d"\)'):
        plots.plot_position_path(config(), ax=flat)
    with pytest.raises(ValueError, match=r"make it with fig.add_subplot\(\)"):
        plots.plot_position_table(config(), ax=space)
    with pytest.raises(TypeError, match="ax is a str"):
        plots.plot_position_table(config(), ax="left")
    with pytest.raises(ValueError, match=r"ax has 1 axes, but the picture has 2 x 4.*plt.subplots\(2, 4\)"):
        plots.plot_attention_maps(PlainformerModel(config()), tokenizer, TEXT, ax=flat)


# What cannot be meant


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.plot_position_table("folder"), "model_or_config is the text 'folder'"),
        (lambda: plots.plot_position_table(torch.nn.Linear(1, 1)), "model is a Linear, not a Plainformer"),
        (lambda: plots.plot_position_table(config(), length=1), "length=1: give a whole number of at least 2"),
        (lambda: plots.plot_position_table(config("learned"), length=513), "length=513 is more than the 512 positions"),
        (lambda: plots.plot_position_curves(config(), dimensions=[32]), "32 is none of 32 dimensions, 0 to 31"),
        (lambda: plots.plot_position_curves(config(), dimensions=[]), "dimensions is empty"),
        (lambda: plots.plot_position_path(config(), dimensions=[0, 1]), "a path in space has three"),
        (lambda: plots.plot_position_waves(config(), count=17), "count=17: there are 16 even dimensions"),
        (lambda: plots.plot_scores_by_distance(config("alibi"), layer=2), "2 is none of 2 layers, 0 to 1"),
        (lambda: plots.plot_embedding_sizes(config(), num_tokens=0), "num_tokens=0"),
        (lambda: plots.plot_causal_mask(config()), "an encoder has no causal mask"),
        (lambda: plots.plot_causal_mask(PlainformerSeq2SeqConfig(**SIZES), length=0), "length=0: give"),
        (lambda: plots.plot_unpadded_batch(config(), lengths=[3, 3]), "not all equally many"),
        (lambda: plots.plot_position_table(config(), language="fr"), "language='fr' is not one of 'en', 'zh'"),
        (lambda: plots.save_plot(plots.plot_position_table(config()), "a.jpg"), "a.jpg ends in '.jpg'"),
    ],
)
def test_an_error_names_the_value_and_the_remedy(call, message):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        call()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [2]}, "layers=[2]: 2 is none of 2 layers, 0 to 1"),
        ({"heads": [-1]}, "-1 is none of 4 heads"),
        ({"text": " "}, "give a text that is not empty"),
        ({"text": "cat " * 70}, "a map shows at most 64: give a shorter text"),
        ({"text": "c " * 60, "heads": [0, 1, 2, 3] * 2}, "choose fewer layers or heads, or a shorter text"),
    ],
)
def test_an_error_of_attention_maps_names_the_value(options, message, tokenizer):
    with pytest.raises(ValueError, match=re.escape(message)):
        plots.plot_attention_maps(PlainformerModel(config()), tokenizer, **{"text": TEXT, **options})


def test_an_encoder_has_no_cross_attention(tokenizer):
    with pytest.raises(ValueError, match="has no decoder and so no cross-attention"):
        plots.plot_cross_attention(PlainformerModel(config()), tokenizer, TEXT)


# The script


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_script_writes_a_picture_of_a_folder(ending, script, tokenizer, tmp_path, capsys):
    PlainformerModel(config()).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    file = tmp_path / "new" / f"maps.{ending}"
    script.main(
        ["attention_maps", "--model", str(tmp_path / "model"), "--text", TEXT, "--layers", "0", "--output", str(file)]
    )
    assert str(file) in capsys.readouterr().out
    assert file.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml"}[ending])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("position_table --output a.jpg", "--output a.jpg ends in '.jpg'"),
        ("position_table --output a.png --text x", "--text does nothing to position_table, only to attention_maps"),
        ("attention_maps --output a.png --text x", "needs a trained model and a text"),
        ("position_table --output a.png --model ./none", "there is no such folder"),
        ("position_table --output a.png --model .", "holds no config.json"),
        ("position_table --output a.png --model . --hidden_size 8", "--hidden_size with --model"),
        ("position_table --output a.png --hidden_size 30", "hidden_size=30 is not a multiple of num_attention_heads=4"),
        ("position_table --output a.png --position_embedding_type alibi", "has no position vectors"),
        ("causal_mask --output a.png --position_embedding_type alibi rotary", "is the same for every kind"),
    ],
)
def test_the_script_says_what_to_change(words, message, script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(script.RecipeError, match=re.escape(message)):
        script.main(words.split())
    assert not list(tmp_path.iterdir())
