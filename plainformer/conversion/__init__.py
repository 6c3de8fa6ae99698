"""Checkpoints of other families in and out.

A family is one table: `family.py` says what stands in it, `bert.py` is the table of BERT. `reading.py` and `writing.py`
go by the table and know no family by name.
"""

from .bert import BERT_CLASSES, bert_name, from_bert, to_bert

__all__ = ["BERT_CLASSES", "bert_name", "from_bert", "to_bert"]
