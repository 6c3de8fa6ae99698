"""The peers: OpenVINO and ONNX Runtime with the weights of a `BertModel`, set as their documentation says.

An engine is a function from a batch to the last hidden states. Both peers take any batch size and length, and use as
many threads as torch. Where there is more than one way to set a peer, the fastest one on given batches counts.

Shapes: B batch, L length, E hidden size.
"""

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import nncf
import onnx
import onnxruntime
import openvino
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers.optimizer import optimize_model
from texts import Batch
from timing import seconds
from torch import Tensor, nn

Engine = Callable[[Batch], Tensor]  # a batch of [B, L] -> hidden states [B, L, E]

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
EXAMPLE = {name: torch.ones(2, 5, dtype=torch.long) for name in INPUTS}  # what the exporters see
PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}  # OpenVINO's names


class HiddenStates(nn.Module):
    """A `BertModel` with one output, and with its inputs in the order of `INPUTS`."""

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """[B, L] each -> [B, L, E]."""
        return self.bert(input_ids, attention_mask, token_type_ids).last_hidden_state


def fastest(engines: Iterable[Engine], batches: list[Batch]) -> Engine:
    """The best of two runs of each decides."""

    def run(engine: Engine) -> None:
        for batch in batches:
            engine(batch)

    return min(engines, key=lambda engine: min(seconds(partial(run, engine)) for _ in range(2)))


@contextmanager
def quiet() -> Iterator[None]:
    """Exporters and quantisers warn about what is as it should be."""
    loggers = [logging.getLogger(name) for name in ("nncf", "onnxruntime.transformers", "root")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def openvino_graph(bert: nn.Module) -> openvino.Model:
    """Any batch size and length."""
    shapes = [(name, [-1, -1]) for name in INPUTS]
    with quiet():
        return openvino.convert_model(HiddenStates(bert), example_input=EXAMPLE, input=shapes)


def calibrate(graph: openvino.Model, texts: list[Batch]) -> openvino.Model:
    """NNCF's int8 for transformers, with its smooth quantisation; `texts` are batches of one."""
    samples = nncf.Dataset(texts, lambda text: {name: text[name].numpy() for name in INPUTS})
    with quiet():
        return nncf.quantize(graph, samples, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(texts))


def openvino_engine(graph: openvino.Model, dtype: str) -> Engine:
    """dtype: how the products compute that are not in int8."""
    settings = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
    }
    request = openvino.Core().compile_model(graph, "CPU", settings).create_infer_request()

    def run(batch: Batch) -> Tensor:
        inputs = {name: batch[name].numpy() for name in INPUTS}
        return torch.from_numpy(request.infer(inputs, share_inputs=True, share_outputs=True)[0])  # [B, L, E]

    return run


def onnx_graphs(berts: dict[str, nn.Module], folder: Path) -> list[Path]:
    """The graph as exported with each attention, and one that ONNX Runtime's own tool has fused.

    Args:
        berts: the same model by its `attn_implementation`, "sdpa" and "eager". The tool knows the latter's attention.
    """
    axes = {name: {0: "batch", 1: "length"} for name in (*INPUTS, "hidden_states")}
    names = {"input_names": list(INPUTS), "output_names": ["hidden_states"], "dynamic_axes": axes}
    files = {name: folder / f"{name}.onnx" for name in berts}
    with quiet():
        for name, bert in berts.items():
            example = tuple(EXAMPLE.values())
            torch.onnx.export(HiddenStates(bert), example, files[name], **names, opset_version=17, dynamo=False)
        sizes = {"num_heads": bert.config.num_attention_heads, "hidden_size": bert.config.hidden_size}
        files["fused"] = folder / "fused.onnx"
        fused = optimize_model(str(files["eager"]), model_type="bert", opt_level=0, **sizes)
        fused.save_model_to_file(str(files["fused"]))
    return list(files.values())


def quantize_onnx(file: Path) -> Path:
    """Dynamic int8, with a scale for each output of a weight."""
    target = file.with_name(f"{file.stem}-int8.onnx")
    options = {"DefaultTensorType": onnx.TensorProto.FLOAT}  # of what comes out of a fused operator
    with quiet():
        quantize_dynamic(file, target, per_channel=True, weight_type=QuantType.QInt8, extra_options=options)
    return target


def onnxruntime_engine(file: Path) -> Engine:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def run(batch: Batch) -> Tensor:
        return torch.from_numpy(session.run(None, {name: batch[name].numpy() for name in INPUTS})[0])  # [B, L, E]

    return run


def openvino_engines(bert: nn.Module, dtypes: list[str], texts: list[Batch], batches: list[Batch]) -> dict[str, Engine]:
    """By type; `texts` are those of the calibration, `batches` choose in which type int8 computes the rest."""
    graph = openvino_graph(bert)
    quantized = calibrate(graph, texts)
    engines = {dtype: openvino_engine(graph, dtype) for dtype in dtypes if dtype in PRECISIONS}
    return {**engines, "int8": fastest([openvino_engine(quantized, dtype) for dtype in engines], batches)}


def onnxruntime_engines(berts: dict[str, nn.Module], batches: list[Batch]) -> dict[str, Engine]:
    """By type; there is none in bfloat16. `batches` choose the fastest of each type."""
    with tempfile.TemporaryDirectory() as folder:
        files = onnx_graphs(berts, Path(folder))
        engines = {
            "float32": [onnxruntime_engine(file) for file in files],
            "int8": [onnxruntime_engine(quantize_onnx(file)) for file in files],
        }
    return {dtype: fastest(ways, batches) for dtype, ways in engines.items()}
