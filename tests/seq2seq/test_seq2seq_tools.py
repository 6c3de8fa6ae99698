"""The encoder-decoder with other tools: adapters, captured graphs, functional transforms."""

import torch
from helpers.models import assert_same, gradients
from helpers.seq2seq import GREEDY, START, make_pairs, make_seq2seq, make_source
from peft import LoraConfig, TaskType, get_peft_model
from torch.func import functional_call, grad


def test_an_adapter_learns_and_generates():
    config = LoraConfig(task_type=TaskType.SEQ_2_SEQ_LM, r=2, target_modules=["q_proj", "v_proj"])
    model = get_peft_model(make_seq2seq(), config)
    model(**make_pairs()).loss.backward()
    adapted = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert len(adapted) == 2 * 2 * (2 + 2 * 3) and all("lora_" in name for name in adapted)
    assert model.generate(**make_source(), **GREEDY).shape[0] == 5


def test_captured_graphs_agree():
    model, source = make_seq2seq(), make_source()
    inputs = {**source, "decoder_input_ids": torch.full((5, 3), START), "use_cache": False}
    expected = model(**inputs).logits
    exported = torch.export.export(model, (), inputs, strict=False)
    assert_same(exported.module()(**inputs).logits, expected)
    compiled = torch.compile(model, fullgraph=True, backend="eager")  # the graph, without the minutes of machine code
    assert_same(compiled(**inputs).logits, expected)


def test_gradients_as_a_function():
    model, pairs = make_seq2seq(), make_pairs()
    model(**pairs).loss.backward()
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    found = grad(lambda values: functional_call(model, values, (), pairs).loss)(parameters)
    assert_same({name: found[name] for name in gradients(model)}, gradients(model))
