"""`imbrex infer`: sends one file to a coordinator and prints the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.answers import IN_FORCE, Choice
from coordinator.library.naming import public_name
from imbrex import terminal
from imbrex.calls import media_type, plain, read_file
from imbrex.client import Client
from imbrex.pictures import save_annotated


@dataclass(frozen=True, slots=True)
class Wish:
    """The plan that the user wants, as a choice or a plan's file, and the least score of a box."""

    choice: Choice = IN_FORCE
    plan: Path | None = None
    min_score: float | None = None

    def on(self, client: Client, model: str) -> Choice:
        """The choice, after sending the plan's file if there is one."""
        return client.send_plan(model, read_file(self.plan)) if self.plan else self.choice


def infer(file: Path, model: str, url: str, wish: Wish, *, save: Path | None, as_json: bool) -> int:
    """Sends a picture (or tensors as .npz) and prints the answer."""
    body, model = read_file(file), public_name(model)
    with Client(url) as client, terminal.waiting(f"{file.name} through {model}"):
        choice = wish.on(client, model)
        asked = client.infer(model, body, media_type(file), choice, min_score=wish.min_score)
        answer = plain(asked)
    if save is not None:
        save_annotated(body, answer["predictions"], save)
    if as_json:
        terminal.print_json(answer)
        return 0
    console = terminal.out()
    if answer["predictions"]:
        console.print(terminal.predictions_table(answer["predictions"]))
    else:
        console.print("nothing found")
    console.print(phases(answer))
    for what, why in answer.get("assumed", {}).items():
        console.print(f"assumed {what}: {why} (imbrex models confirm {model})", soft_wrap=True)
    if save is not None:
        console.print(f"annotated picture: {save}")
    return 0


def phases(answer: Mapping[str, Any]) -> str:
    """Where an answer's time went, in one line."""
    timing = dict(answer["timing_ms"])
    total = timing.pop("total")
    parts = ", ".join(f"{phase} {each:.1f}" for phase, each in timing.items())
    count = len(answer["devices"])
    devices = "1 device" if count == 1 else f"{count} devices"
    return f"{total:.1f} ms on {devices} ({parts}); plan {answer['plan_version']}"
