"""accelerate: layers on several devices, in memory or on disk. Several processes: `test_distributed.py`."""

import os
from collections.abc import Iterator

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from helpers.axes import paired
from helpers.models import HEADS, KIND_AND_NORM, MODELS, answers, assert_same, make_model
from helpers.training import make_batch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from plainformer import PlainformerForMaskedLM

UNPADDING = {"unpadded": True, "padded": False}
ASKED = ["nothing", "hidden_states", "attentions"]


@pytest.mark.parametrize(("model_class", "unpad_inputs"), paired(MODELS, UNPADDING))
def test_device_map_auto(model_class, unpad_inputs, tmp_path):
    """On a machine without another device everything is on the CPU; on disk what its memory may not hold."""
    make_model(model_class, unpad_inputs=unpad_inputs).save_pretrained(tmp_path / "model")
    batch = make_batch(model_class)
    expected = answers(model_class.from_pretrained(tmp_path / "model")(**batch))
    plain = model_class.from_pretrained(tmp_path / "model", device_map="auto")
    assert {parameter.device.type for parameter in plain.parameters()} == {"cpu"}
    assert torch.equal(answers(plain(**batch)), expected)
    spread = model_class.from_pretrained(
        tmp_path / "model",
        device_map="auto",
        max_memory={"cpu": "40KB"},
        offload_folder=os.fspath(tmp_path / "offloaded"),
    )
    assert set(spread.hf_device_map.values()) == {"cpu", "disk"}
    assert torch.equal(answers(spread(**batch)), expected)


@pytest.mark.parametrize(("model_class", "unpad_inputs"), paired(MODELS, UNPADDING))
def test_weights_wait_in_memory_or_on_disk(model_class, unpad_inputs, tmp_path):
    """Each is brought to the device for its own part of the work only."""
    model = make_model(model_class, unpad_inputs=unpad_inputs)
    batch = make_batch(model_class)
    with torch.no_grad():
        expected = answers(model(**batch))
        offloaded = cpu_offload(model, execution_device="cpu")
        assert all(parameter.is_meta for parameter in offloaded.parameters())
        assert torch.equal(answers(offloaded(**batch)), expected)
        on_disk = disk_offload(
            make_model(model_class, unpad_inputs=unpad_inputs), tmp_path / "offloaded", execution_device="cpu"
        )
        assert all(parameter.is_meta for parameter in on_disk.parameters())
        assert torch.equal(answers(on_disk(**batch)), expected)


class PretendedDevices(TorchFunctionMode):
    """Tensors on the CPU that say they are on GPUs, and refuse to be mixed as those would."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function == Tensor.device.__get__:
            return where(args[0])
        if function is Tensor.to:
            return self.move(*args, **kwargs)
        devices = {where(value) for value in tensors_in((args, kwargs)) if value.dim()}
        if len(devices) > 1:
            raise RuntimeError(f"{function.__name__} was given tensors on {devices}")
        device = kwargs.get("device")
        if device is not None:
            devices, kwargs["device"] = {torch.device(device)}, "cpu"
        result = function(*args, **kwargs)
        for value in tensors_in(result):
            value.place = next(iter(devices), where(value))
        return result

    @staticmethod
    def move(value: Tensor, *args, device=None, **kwargs) -> Tensor:
        """`Tensor.to` a device, a type, both, or where another tensor is."""
        place = where(value)
        for argument in (*args, device):
            if isinstance(argument, Tensor):
                place, kwargs["dtype"] = where(argument), argument.dtype
            elif isinstance(argument, torch.dtype):
                kwargs["dtype"] = argument
            elif isinstance(argument, (torch.device, str, int)) and not isinstance(argument, bool):
                place = torch.device(argument)
        moved = value.to(**kwargs).view_as(value)  # never the tensor itself, which stays where it is
        moved.place = place
        return moved


def where(value: Tensor) -> torch.device:
    return getattr(value, "place", torch.device("cpu"))


def tensors_in(values) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (tuple, list, dict)):
        for value in values.values() if isinstance(values, dict) else values:
            yield from tensors_in(value)


def place(module: nn.Module, device: str, **options) -> None:
    """Put a module on a pretended device, with the hook of accelerate that sends there what its forward is given."""
    for parameter in module.parameters():
        parameter.place = torch.device(device)
    hook = AlignDevicesHook(**options)
    add_hook_to_module(module, hook)
    hook.execution_device = torch.device(device)  # now, so that it does not really move the weights


@pytest.mark.parametrize(("head_class", "variant", "asked"), paired(HEADS, KIND_AND_NORM, ASKED))
@pytest.mark.parametrize("unpad_inputs", UNPADDING.values(), ids=UNPADDING)
def test_layers_on_several_devices(head_class, variant, unpad_inputs, asked):
    """As `device_map` spreads them over GPUs: whatever follows from the mask goes where it is needed."""
    overrides = {"unpad_inputs": unpad_inputs, "tie_word_embeddings": False}
    overrides["classifier_pooling"] = "mean" if variant["pre_norm"] else "cls"
    model = make_model(head_class, problem_type="single_label_classification", **overrides, **variant)
    batch = make_batch(head_class)
    options = {} if asked == "nothing" else {f"output_{asked}": True}
    expected = model(**batch, **options)
    encoder, embeddings = model.base_model, model.base_model.embeddings
    parts = [embeddings.position_embeddings, embeddings.word_embeddings, embeddings.token_type_embeddings]
    parts += [embeddings.norm, *encoder.layers, encoder.final_norm]
    parts += [part for part in model.children() if part is not encoder]
    for number, part in enumerate(parts, start=1):
        place(part, f"cuda:{number}")
    hook = AlignDevicesHook(execution_device=torch.device("cuda:0"), io_same_device=True)
    with PretendedDevices():
        add_hook_to_module(model, hook)
        output = model(**{name: value.to("cuda:0") for name, value in batch.items()}, **options)
        assert answers(output).device == output.loss.device == torch.device("cuda:0")
        output.loss.backward()
    assert_same(output.to_tuple(), expected.to_tuple())


def test_untying_and_offloading_at_once_is_refused(tmp_path):
    """The file of a tied model holds one copy, from which an untied decoder starts; on disk it cannot be copied."""
    make_model(PlainformerForMaskedLM).save_pretrained(tmp_path / "model")
    device_map = {"plainformer": "cpu", "lm_head": "disk"}
    options = {"device_map": device_map, "offload_folder": os.fspath(tmp_path / "offloaded")}
    with pytest.raises(ValueError, match="tie_word_embeddings=False.*without device_map"):
        PlainformerForMaskedLM.from_pretrained(tmp_path / "model", tie_word_embeddings=False, **options)

    untied = PlainformerForMaskedLM.from_pretrained(tmp_path / "model", tie_word_embeddings=False)
    untied.save_pretrained(tmp_path / "untied")
    spread = PlainformerForMaskedLM.from_pretrained(tmp_path / "untied", **options)
    batch = make_batch(PlainformerForMaskedLM)
    assert torch.equal(answers(spread(**batch)), answers(untied(**batch)))
