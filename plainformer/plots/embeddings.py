"""How large token and position are beside each other, with and without sqrt(E)."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from .canvas import line_colours, open_axes, picture
from .labels import Translate
from .values import embedding_sizes, name_of, read_encoder


@picture
def plot_embedding_sizes(
    model_or_config: Any, length: int = 64, num_tokens: int = 1000, *, ax: Axes | None = None, words: Translate
) -> Axes:
    """Lengths of token, position and their sum, without and with sqrt(E): mean, and where 90 % of them lie."""
    encoder = read_encoder(model_or_config)
    sizes = embedding_sizes(encoder, length, num_tokens).numpy()  # [2, 3, N]
    means = sizes.mean(axis=2)
    spread = np.abs(np.quantile(sizes, (0.05, 0.95), axis=2) - means)  # [2, 2, 3]
    ax = open_axes(ax)
    for part, (name, colour) in enumerate(zip(("token", "position", "token + position"), line_colours(3), strict=True)):
        options = {"yerr": spread[:, :, part], "error_kw": {"ecolor": "0.35", "lw": 2, "capsize": 5}}
        bars = ax.bar(
            np.arange(2) + (part - 1) * 0.27, means[:, part], 0.25, color=colour, label=words(name), **options
        )
        ax.bar_label(bars, fmt="%.2f", padding=3)
    own = int(encoder.config.scale_embedding)
    names = [words(name) for name in ("token as it is", "token × √d")]
    names[own] += f"\n({words('this model')})"
    ax.set_xticks(range(2), names)
    ax.set_ylabel(words("length of the vector (mean; line: 5 % to 95 %)"))
    ax.set_title(
        f"{words('Sizes of embeddings')} ({name_of(encoder, words, encoder)}, d = {encoder.config.hidden_size})"
    )
    ax.margins(y=0.15)
    ax.legend(loc="upper left")
    return ax
