"""Their `TokenizerTesterMixin` on a tokenizer that `train_tokenizer` made, saved and loaded again."""

import tempfile
import unittest

from transformers import BertTokenizer, BertTokenizerFast

from ...test_tokenization_common import TokenizerTesterMixin
from .subject import make_tokenizer


class PlainformerTokenizationTest(TokenizerTesterMixin, unittest.TestCase):
    tokenizer_class = BertTokenizer  # in transformers 4 the one in Python, which reads our folders too
    rust_tokenizer_class = BertTokenizerFast
    test_seq2seq = False

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.from_pretrained_id = [temporary.name]
        make_tokenizer().save_pretrained(cls.from_pretrained_id[0])
        super().setUpClass()
        make_tokenizer().save_pretrained(cls.tmpdirname)  # as theirs does from transformers 5 on
