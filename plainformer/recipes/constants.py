"""Constants that several modules of the recipes read."""

SPLITS = ("train", "validation", "test")
IGNORE_INDEX = -100  # the label that torch's cross entropy ignores

# The characters of scripts that are written without spaces: Chinese, and Japanese with its kana.
UNSPACED = (
    r"\u3005\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    r"\U00020000-\U0003ffff"
)
