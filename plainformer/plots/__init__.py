"""Pictures of what a model computes: its positions, its embeddings, its masks, its attention.

Every function draws values of the model's own functions and returns the axes, so that a picture can be changed or put
beside others. It needs matplotlib: `pip install "plainformer[plots]"`. [All pictures](../../docs/figures.md).
"""

try:
    import matplotlib  # noqa: F401  so that its absence is told in one place
except ImportError as error:
    raise ImportError('plainformer.plots needs matplotlib: pip install "plainformer[plots]"') from error

from .attention import plot_attention_maps, plot_causal_mask, plot_cross_attention
from .batches import plot_unpadded_batch
from .canvas import save_plot, write_instead
from .embeddings import plot_embedding_sizes
from .positions import (
    plot_position_curves,
    plot_position_frequencies,
    plot_position_path,
    plot_position_similarity,
    plot_position_table,
    plot_position_waves,
    plot_similarity_by_distance,
)
from .scores import plot_scores_by_distance

__all__ = [
    "plot_attention_maps",
    "plot_causal_mask",
    "plot_cross_attention",
    "plot_embedding_sizes",
    "plot_position_curves",
    "plot_position_frequencies",
    "plot_position_path",
    "plot_position_similarity",
    "plot_position_table",
    "plot_position_waves",
    "plot_scores_by_distance",
    "plot_similarity_by_distance",
    "plot_unpadded_batch",
    "save_plot",
    "write_instead",
]
