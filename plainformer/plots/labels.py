"""The words in pictures, in English and in Chinese, and the fonts that have them."""

import re
import warnings
from collections.abc import Callable

from matplotlib import font_manager

LANGUAGES = ("en", "zh")
# Fonts with simplified Chinese, the best first: of Linux, Windows and macOS.
CHINESE_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN", "Noto Sans CJK JP"),
    *("WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Microsoft YaHei", "SimHei", "SimSun"),
    *("PingFang SC", "Hiragino Sans GB", "Heiti SC", "STHeiti", "Songti SC", "Arial Unicode MS"),
)
HAN = re.compile("[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")

CHINESE = {
    "not trained": "未经训练",
    # positions
    "Position vectors": "位置向量",
    "Dimensions over positions": "各维度随位置的变化",
    "Waves of rising frequency": "频率递增的波",
    "Frequency of each pair of dimensions": "各维度对的频率",
    "Path of the positions in three dimensions": "位置在三个维度中的轨迹",
    "Similarity of two positions": "两个位置的相似度",
    "Similarity by distance": "相似度与距离的关系",
    "position": "位置",
    "dimension": "维度",
    "value": "数值",
    "cosine": "余弦相似度",
    "distance of two positions": "两个位置的距离",
    "angle per position (radians)": "每个位置转过的角度（弧度）",
    "positions per turn": "每转一圈的位置数",
    "mean of all pairs": "所有位置对的平均值",
    "lowest to highest": "最小值到最大值",
    # scores
    "What is added to attention scores": "加到注意力分数上的偏置",
    "How rotation weakens attention scores": "旋转对注意力分数的削弱",
    "key position - query position": "键的位置 − 查询的位置",
    "bias": "偏置",
    "score over score at distance 0": "分数与距离为 0 时之比",
    "head {}": "第 {} 头",
    "layer {}, head {}": "第 {} 层，第 {} 头",
    "average over columns": "各列的平均",
    # embeddings
    "Sizes of embeddings": "嵌入向量的长度",
    "token": "词元",
    "token + position": "词元 + 位置",
    "length of the vector (mean; line: 5 % to 95 %)": "向量的长度（平均值；竖线：5 % 到 95 %）",
    "token as it is": "词元不缩放",
    "token × √d": "词元 × √d",
    "this model": "此模型",
    # attention
    "Causal mask": "因果掩码",
    "may attend": "可以关注",
    "masked": "被屏蔽",
    "padding": "填充",
    "Attention": "注意力",
    "Cross-attention": "交叉注意力",
    "attention weight": "注意力权重",
    "token that attends": "发出关注的词元",
    "token attended to": "被关注的词元",
    "token being written": "正在生成的词元",
    "token of the source": "源文本的词元",
    # batches
    "text": "文本",
    "BERT computes {} places": "BERT 计算 {} 个位置",
    "plainformer computes {} tokens": "plainformer 计算 {} 个词元",
    "How many times as fast as BERT": "速度是 BERT 的多少倍",
}

Translate = Callable[[str], str]


def find_chinese_font() -> str | None:
    """The family of the best installed font with Chinese characters; None where there is none."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return next((name for name in CHINESE_FONTS if name in installed), None)


def choose_language(language: str) -> Translate:
    """A function from the English words of a picture to those of the language, if a font has them.

    Raises:
        ValueError: another language than those of `LANGUAGES`.
    """
    if language not in LANGUAGES:
        raise ValueError(f"language={language!r} is not one of {', '.join(map(repr, LANGUAGES))}.")
    if language == "zh" and find_chinese_font() is None:
        _warn_about_fonts("The labels are in English")
        language = "en"
    return CHINESE.__getitem__ if language == "zh" else str


def readable(tokens: list[str]) -> list[str]:
    """The tokens as they can be drawn: where no font has Chinese characters, these as U+4E2D."""
    if find_chinese_font() is not None or not any(map(HAN.search, tokens)):
        return tokens
    _warn_about_fonts("Characters are drawn by number, as U+4E2D")
    return [HAN.sub(lambda match: f"U+{ord(match[0]):04X}", token) for token in tokens]


def _warn_about_fonts(consequence: str) -> None:
    remedy = "install one, such as Noto Sans CJK SC (Debian and Ubuntu: fonts-noto-cjk), and start Python anew"
    warnings.warn(
        f"matplotlib finds no font with Chinese characters. {consequence}. To have them, {remedy}.", stacklevel=3
    )
