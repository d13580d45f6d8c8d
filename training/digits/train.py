"""Train `digits` with PyTorch and write its ONNX file: `python -m training.digits.train`.

Development only: nothing else in the project imports this module or PyTorch.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from models.digits import FOLDER
from training.digits import network
from training.digits.ink import InkPart
from training.digits.sheets import MOST_DIGITS, Format, sheet

BATCH = 16
PEAK_RATE = 3e-3
WEIGHT_DECAY = 5e-4
AVERAGE_DECAY = 0.998
IGNORE_IOU = 0.5
BAR_GREY = 114
SEED = 7
PRIOR_LOGIT = -5.0  # one cell and anchor in about 270 holds a digit


class Sheets(Dataset):
    """Training sheet number `index`, on demand; a third of them letterboxed."""

    def __init__(self, count, first=0):
        self.count, self.first = count, first

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        seed = self.first + index
        rng = np.random.default_rng([3, seed])
        short = int(rng.uniform(0.55, 1.0) * network.SIDE) if rng.random() < 0.33 else network.SIDE
        wide = rng.random() < 0.5
        form = Format(*((network.SIDE, short) if wide else (short, network.SIDE)))
        made = sheet(InkPart.TRAIN, seed, form)
        left, top = (network.SIDE - form.width) // 2, (network.SIDE - form.height) // 2
        pixels = np.full((network.SIDE, network.SIDE, 3), BAR_GREY, dtype=np.uint8)
        pixels[top : top + form.height, left : left + form.width] = made.pixels
        truth = np.zeros((MOST_DIGITS, 6), dtype=np.float32)  # present, label, box
        for row, digit in zip(truth, made.digits, strict=False):
            x0, y0, x1, y1 = digit.box
            row[:] = 1, digit.label, x0 + left, y0 + top, x1 + left, y1 + top
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()), torch.from_numpy(truth)


class Net(nn.Module):
    """The layers of `network.LAYERS`, with batch normalisation after every inner convolution."""

    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleDict()
        for step in network.shaped():
            self.steps[step.layer.name] = _module(step)
        nn.init.zeros_(self.steps["head"].weight)
        bias = self.steps["head"].bias.data.zero_().view(len(network.ANCHORS), -1)
        bias[:, 4] = PRIOR_LOGIT

    def forward(self, image):
        value = image.float().div(255).contiguous(memory_format=torch.channels_last)
        for step in self.steps.values():
            value = step(value)
        return value


def _module(step):
    layer = step.layer
    if isinstance(layer, network.Pool):
        return nn.MaxPool2d(2)
    options = {"stride": layer.stride, "padding": layer.kernel // 2, "bias": not layer.relu}
    conv = nn.Conv2d(step.channels_in, layer.channels, layer.kernel, **options)
    if not layer.relu:
        return conv
    return nn.Sequential(conv, nn.BatchNorm2d(layer.channels), nn.ReLU(inplace=True))


def folded(net):
    """Weights for `network.build`: normalisation folded, the first layer reading 0..255."""
    weights = {}
    for name, step in net.steps.items():
        if isinstance(step, nn.MaxPool2d):
            continue
        conv = step[0] if isinstance(step, nn.Sequential) else step
        weight = conv.weight.detach().double()
        if isinstance(step, nn.Sequential):
            norm = step[1]
            gain = norm.weight.detach().double() / (norm.running_var.double() + norm.eps).sqrt()
            bias = norm.bias.detach().double() - gain * norm.running_mean.double()
            weight = weight * gain[:, None, None, None]
        else:
            bias = conv.bias.detach().double()
        if name == "conv1":
            weight = weight / 255
        weights[f"{name}.weight"] = weight.float().contiguous().numpy()
        weights[f"{name}.bias"] = bias.float().numpy()
    return weights


def decoded(grid):
    """Boxes (B, H, W, A, 4) as corners in pixels, objectness logits and class logits."""
    count, _, height, width = grid.shape
    raw = grid.float().view(count, len(network.ANCHORS), -1, height, width).permute(0, 3, 4, 1, 2)
    columns = torch.arange(width).view(1, 1, width, 1)
    rows = torch.arange(height).view(1, height, 1, 1)
    anchors = torch.tensor(network.ANCHORS) * network.STRIDE
    x = (raw[..., 0].sigmoid() + columns) * network.STRIDE
    y = (raw[..., 1].sigmoid() + rows) * network.STRIDE
    half = anchors * raw[..., 2:4].clamp(-4, 4).exp() / 2
    centre = torch.stack((x, y), dim=-1)
    return torch.cat((centre - half, centre + half), dim=-1), raw[..., 4], raw[..., 5:]


def overlap(one, other):
    """IoU and GIoU of two broadcastable sets of boxes (..., 4)."""
    size = (
        torch.minimum(one[..., 2:], other[..., 2:]) - torch.maximum(one[..., :2], other[..., :2])
    ).clamp(min=0)
    hull = (
        torch.maximum(one[..., 2:], other[..., 2:]) - torch.minimum(one[..., :2], other[..., :2])
    ).prod(-1)
    both = size.prod(-1)
    areas = (one[..., 2:] - one[..., :2]).prod(-1) + (other[..., 2:] - other[..., :2]).prod(-1)
    union = (areas - both).clamp(min=1e-6)
    iou = both / union
    return iou, iou - (hull - union) / hull.clamp(min=1e-6)


def loss_of(grid, truth):
    """Objectness, box and class losses per true digit, each true digit owning one anchor."""
    boxes, objectness, classes = decoded(grid)
    sheet_of, slot = truth[..., 0].nonzero(as_tuple=True)
    label, box = truth[sheet_of, slot, 1].long(), truth[sheet_of, slot, 2:]
    centre, size = (box[:, :2] + box[:, 2:]) / 2, box[:, 2:] - box[:, :2]
    cell = (centre / network.STRIDE).long().clamp(max=grid.shape[-1] - 1)
    anchors = torch.tensor(network.ANCHORS) * network.STRIDE
    both = torch.minimum(size[:, None], anchors[None]).prod(-1)
    shape_iou = both / (size.prod(-1)[:, None] + anchors.prod(-1)[None] - both)
    where = (sheet_of, cell[:, 1], cell[:, 0], shape_iou.argmax(1))

    with torch.no_grad():
        every = boxes.flatten(1, 3)[:, :, None]
        best = (overlap(every, truth[:, None, :, 2:])[0] * truth[:, None, :, 0]).amax(-1)
        counted = (best.view(objectness.shape) < IGNORE_IOU).float()
    wanted = torch.zeros_like(objectness)
    wanted[where], counted[where] = 1.0, 1.0
    found = functional.binary_cross_entropy_with_logits(
        objectness, wanted, weight=counted, reduction="sum"
    )
    placed = (1 - overlap(boxes[where], box)[1]).sum()
    read = functional.cross_entropy(classes[where], label, reduction="sum", label_smoothing=0.02)
    return torch.stack((found, placed * 2, read)) / max(1, len(label))


def learning_rate(step, steps):
    """Warm up for 5 % of the steps, then a cosine down to 1 % of the peak."""
    warm = max(1, steps // 20)
    if step < warm:
        return PEAK_RATE * (step + 1) / warm
    fall = (step - warm) / max(1, steps - warm)
    return PEAK_RATE * (0.01 + 0.99 * (1 + np.cos(np.pi * fall)) / 2)


def train(steps, threads, checkpoints, bf16):
    """Train for `steps` batches; return the weights' moving average and the log."""
    torch.manual_seed(SEED)
    torch.set_num_threads(threads)
    net = Net().to(memory_format=torch.channels_last)
    average = torch.optim.swa_utils.AveragedModel(
        net,
        multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(AVERAGE_DECAY),
        use_buffers=True,
    )
    optimiser = torch.optim.AdamW(net.parameters(), lr=PEAK_RATE, weight_decay=WEIGHT_DECAY)
    loader = DataLoader(Sheets(steps * BATCH), BATCH, num_workers=1, prefetch_factor=4)
    log, recent, began = [], [], time.monotonic()
    for step, (image, truth) in enumerate(loader):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, steps)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            grid = net(image)
        parts = loss_of(grid, truth)
        optimiser.zero_grad(set_to_none=True)
        parts.sum().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimiser.step()
        average.update_parameters(net)
        recent.append(parts.detach())
        if (step + 1) % 20 == 0 or step + 1 == steps:
            found, placed, read = torch.stack(recent).mean(0).tolist()
            log.append(
                {
                    "step": step + 1,
                    "sheets": (step + 1) * BATCH,
                    "objectness": round(found, 4),
                    "box": round(placed, 4),
                    "class": round(read, 4),
                    "seconds": round(time.monotonic() - began, 1),
                }
            )
            recent.clear()
            print(json.dumps(log[-1]), flush=True)
        if checkpoints and (step + 1) % 200 == 0:
            np.savez(checkpoints / "digits.npz", **folded(average.module))
    return folded(average.module), log


def main():
    """Train, then write the model and the log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bf16", action="store_true", help="mixed precision, where it is fast")
    parser.add_argument("--checkpoints", type=Path, help="folder for weights every 200 steps")
    parser.add_argument("--out", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    weights, log = train(arguments.steps, arguments.threads, arguments.checkpoints, arguments.bf16)
    onnx.save(network.build(weights), arguments.out / "digits.onnx")
    record = {
        "command": f"python -m training.digits.train --steps {arguments.steps}"
        + (" --bf16" if arguments.bf16 else ""),
        "torch": torch.__version__,
        "batch": BATCH,
        "peak_learning_rate": PEAK_RATE,
        "weight_decay": WEIGHT_DECAY,
        "average_decay": AVERAGE_DECAY,
        "seed": SEED,
        "threads": arguments.threads,
        "losses": log,
    }
    (arguments.out / "training-log.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
