"""Writes the model files that come with collc: `python benchmarks/nets.py` (collc/training/nets/).

Gradients are those of the layers' shapes, four bytes each. Of a step's compute time a third is the forward pass and two
thirds the backward pass, and layers share them by their multiplications: a convolution's backward pass is two
convolutions of the same size.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "collc" / "training" / "nets"
# FP32 peaks, TFLOP/s, of NVIDIA's data sheets: times of P100 are converted with them.
PEAK = {"p100": 10.6, "v100": 15.7, "a100": 19.5}
TENSORFLOW = (
    "TensorFlow's benchmarks of May 2017 (tensorflow/tensorflow, docs_src/performance/benchmarks.md: DGX-1, one P100, "
    "synthetic data)"
)
OTHERS = "Other GPUs by the ratio of their FP32 peaks (data sheets: 10.6, 15.7, 19.5 TFLOP/s)."


@dataclass(frozen=True)
class Shape:
    """A layer: its parameters, and multiplications per sample."""

    name: str
    parameters: int
    multiplications: float


def conv(name: str, inputs: int, outputs: int, kernel: int, size: int, *, norm: bool = True) -> Shape:
    """A square convolution whose output is size x size, with batch normalisation or else a bias."""
    weights = inputs * outputs * kernel * kernel
    return Shape(name, weights + (2 * outputs if norm else outputs), weights * size * size)


def dense(name: str, inputs: int, outputs: int) -> Shape:
    return Shape(name, inputs * outputs + outputs, inputs * outputs)


def alexnet() -> Iterator[Shape]:
    sizes = [(3, 64, 11, 55), (64, 192, 5, 27), (192, 384, 3, 13), (384, 256, 3, 13), (256, 256, 3, 13)]
    for i, (inputs, outputs, kernel, size) in enumerate(sizes):
        yield conv(f"conv{i + 1}", inputs, outputs, kernel, size, norm=False)
    yield dense("fc6", 9216, 4096)
    yield dense("fc7", 4096, 4096)
    yield dense("fc8", 4096, 1000)


def vgg16() -> Iterator[Shape]:
    inputs = 3
    for block, (outputs, count) in enumerate([(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]):
        for i in range(count):
            yield conv(f"conv{block + 1}_{i + 1}", inputs, outputs, 3, 224 >> block, norm=False)
            inputs = outputs
    yield dense("fc6", 25088, 4096)
    yield dense("fc7", 4096, 4096)
    yield dense("fc8", 4096, 1000)


def resnet(blocks: tuple[int, ...], bottleneck: bool) -> Iterator[Shape]:
    yield conv("conv1", 3, 64, 7, 112)
    inputs = 64
    for stage, count in enumerate(blocks):
        width, size = 64 << stage, 56 >> stage
        outputs = 4 * width if bottleneck else width
        for i in range(count):
            name = f"layer{stage + 1}.{i}"
            if bottleneck:
                # The second convolution has the stride.
                before = size * 2 if stage and not i else size
                yield conv(f"{name}.conv1", inputs, width, 1, before)
                yield conv(f"{name}.conv2", width, width, 3, size)
                yield conv(f"{name}.conv3", width, outputs, 1, size)
            else:
                yield conv(f"{name}.conv1", inputs, width, 3, size)
                yield conv(f"{name}.conv2", width, width, 3, size)
            if inputs != outputs:
                yield conv(f"{name}.downsample", inputs, outputs, 1, size)
            inputs = outputs
    yield dense("fc", inputs, 1000)


def gpt2_xl() -> Iterator[Shape]:
    """48 blocks of width 1600 (Radford et al. 2019): attention 4 d^2, feed-forward 8 d^2; 50,257 words."""
    d = 1600
    yield Shape("embeddings", (50257 + 1024) * d, 0)
    for i in range(48):
        yield Shape(f"block{i}.attention", 4 * d * d + 4 * d + 2 * d, 4 * d * d + 1024 * d)
        yield Shape(f"block{i}.feed_forward", 8 * d * d + 5 * d + 2 * d, 8 * d * d)
    # The output words are the embeddings' weights: their gradients are ready with the first layer.
    yield Shape("output", 2 * d, 50257 * d)


def language() -> Iterator[Shape]:
    """300 million parameters: words in, recurrent layers, words out, a third each; a lookup multiplies nothing."""
    yield Shape("embedding", 100_000_000, 0)
    yield Shape("recurrent", 100_000_000, 100_000_000)
    yield Shape("softmax", 100_000_000, 100_000_000)


def speech() -> Iterator[Shape]:
    """300 million parameters: two convolutions, seven recurrent layers and an output, as Deep Speech 2 has them."""
    yield Shape("conv1", 500_000, 60_000_000)
    yield Shape("conv2", 1_500_000, 60_000_000)
    for i in range(7):
        yield Shape(f"recurrent{i + 1}", 42_000_000, 42_000_000)
    yield Shape("output", 4_000_000, 4_000_000)


@dataclass(frozen=True)
class Chosen:
    """A file: its layers, the milliseconds of compute of a step on a GPU, and where the figures come from."""

    shapes: tuple[Shape, ...]
    gpu: str
    compute_ms: float
    source: str
    others: bool = False


def chosen() -> dict[str, Chosen]:
    found = {}
    res50 = tuple(resnet((3, 4, 6, 3), True))
    res18 = tuple(resnet((2, 2, 2, 2), False))
    alike = sum(s.multiplications for s in res50) / sum(s.multiplications for s in res18)
    for name, shapes, batch, rate, said in (
        ("alexnet", tuple(alexnet()), 128, 2987.0, "2987 images/s at a batch of 512"),
        ("vgg16", tuple(vgg16()), 64, 154.0, "154 images/s"),
        ("resnet50", res50, 32, 195.0, "195 images/s"),
        ("resnet18", res18, 32, 195.0 * alike, "ResNet-50's 195 images/s times the ratio of multiplications"),
    ):
        source = f"Shapes: torchvision. Batch {batch} per GPU. Compute time: {said}, {TENSORFLOW}. {OTHERS}"
        found[name] = Chosen(shapes, "p100", batch / rate * 1e3, source, others=True)
    found["language-300m"] = Chosen(
        tuple(language()),
        "generic",
        370.0,
        "Baidu Research, ring allreduce for deep learning (2017): a language model of about 300 million parameters, "
        "370 ms per iteration on one GPU with a batch of 32. Its layers are not given: words in, recurrent layers and "
        "words out are taken as a third each.",
    )
    found["speech-300m"] = Chosen(
        tuple(speech()),
        "generic",
        3000.0,
        "Baidu Research, ring allreduce for deep learning (2017): a speech model like Deep Speech 2 (arXiv 1512.02595) "
        "with 300 million parameters whose iterations take several seconds, here three. Its layers are not given: two "
        "convolutions, seven recurrent layers of equal size, an output.",
    )
    shapes = tuple(gpt2_xl())
    flops = 6 * sum(s.multiplications for s in shapes) * 8 * 1024
    found["gpt2-xl"] = Chosen(
        shapes,
        "h100",
        flops / (0.4 * 989e12) * 1e3,
        "Shapes: Radford et al. 2019, 48 blocks of width 1600. Compute time: 8 sequences of 1,024 tokens per GPU, two "
        "operations per multiplication and three times the forward pass, at 40% of the 989 TFLOP/s of an H100's data "
        "sheet (dense BF16), which is an assumption, not a measurement. Gradients in four bytes.",
    )
    return found


def text(name: str, net: Chosen) -> str:
    total = sum(s.multiplications for s in net.shapes)
    backward = net.compute_ms * 1e3 * 2 / 3
    lines = ["format: collc-net/1", f"name: {name}", "source: >-"]
    lines += textwrap.wrap(net.source, 110, initial_indent="  ", subsequent_indent="  ")
    lines += [f"gpu: {net.gpu}", f"forward_us: {net.compute_ms * 1e3 / 3:.1f}"]
    if net.others:
        others = ", ".join(f"{gpu}: {PEAK[net.gpu] / peak:.3f}" for gpu, peak in PEAK.items() if gpu != net.gpu)
        lines.append(f"times_on: {{{others}}}")
    lines.append("layers:  # name, bytes of its gradient, microseconds of its backward pass")
    for shape in net.shapes:
        time = backward * shape.multiplications / total
        lines.append(f"  - [{shape.name}, {4 * shape.parameters}, {time:.1f}]")
    return "\n".join(lines) + "\n"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, net in chosen().items():
        (FOLDER / f"{name}.yaml").write_text(text(name, net), encoding="utf-8")


if __name__ == "__main__":
    main()
