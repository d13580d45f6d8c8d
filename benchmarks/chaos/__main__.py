"""What a home does to its devices, for minutes: is any request lost, or any answer wrong?

    python -m benchmarks.chaos --minutes 10 --seed 1 --json
    sudo python -m benchmarks.chaos --lab [--engines] --minutes 10 --seed 1 --json
    sudo python -m benchmarks.chaos --pair --minutes 10 --seed 1 --json
    python -m benchmarks.chaos --liars 20 --json

Six workers, a coordinator, and a steady stream of requests by plans of every kind. Every few
seconds something happens to a worker: it is killed and comes back, with its disk or with none; it
is stopped for a while, as a frozen device is; it is asked to end; it becomes slower or faster; its
disk is full, its memory short. In the lab cables are pulled too: of one device, in one direction
only, between two devices; and a link becomes slow. One worker is always left alone. A request is
*lost* if it ends with an error, and *wrong* if its answer is not the whole model's. Nothing is
restarted by hand. Between these requests come others with tensors of every kind, right and wrong;
one that is neither answered nor refused as wrong is lost, too.

With `--engines` every other device computes with ncnn, all of them at their full speed, and a
larger network.

With `--pair` there are two coordinators with TLS, a store, HAProxy and keepalived, as a home has
them (`benchmarks.pair`), and things happen to the coordinators, their machines and the store, too.

With `--liars`, a device begins to compute wrongly instead, so many times: 1 % of noise, or a
channel of zeros. Nothing shows it at once: how many tasks does it take until the audit finds it?
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.chaos import liars
from benchmarks.chaos.harm import PACES, Harm
from benchmarks.chaos.pair import PairHarm
from benchmarks.chaos.places import Place, here, in_the_lab, with_two
from benchmarks.hostile.poison import tensors
from benchmarks.report import command_line, emit
from benchmarks.workers import Tensors, questions
from coordinator.answers import PlanChoice
from coordinator.serving.common import names
from coordinator.serving.common.tensors import write_tensors
from models.run.reference import compare
from protos.errors import BadRequest, ImbrexError
from protos.wire.convert import data_type_of

MODEL = "digits"
# What takes long enough at full speed that harm comes in the middle of a request.
LARGER = "squeezenet"
ENGINES = ("onnxruntime", "ncnn")
WORKERS = 6
STRATEGIES = ("", "halo", "ofl", "lw", "aofl", "single")
REQUEST_EVERY_S = 1.0
INPUTS = 8
# Every so many requests, one with a tensor of another kind.
POISON_EVERY = 5
# Of the output's largest magnitude [docs/architecture.md].
EXACT = 1e-5
# Whoever waits for longer than this counts as lost.
PATIENCE_S = 60.0
_TRACEBACK_LINES, _MOST_TRACEBACKS = 60, 10


@dataclass(slots=True)
class Outcome:
    """What became of the requests."""

    seconds: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    wrong: int = 0
    poison: int = 0


class Stream:
    """One request after another, whether the earlier ones are answered or not."""

    def __init__(self, place: Place, seed: int, model: str) -> None:
        self.outcome = Outcome()
        self._model = model
        self._client = place.client
        self._choices = random.Random(seed)
        self._questions = questions(model, INPUTS)
        ((name, right),) = self._questions[0][0].items()
        kind = data_type_of(right.dtype)
        self._poisons = cycle({name: tensor} for tensor in tensors(right.shape, kind))

    async def until(self, deadline_s: float) -> None:
        """Until then, and until every one has ended."""
        loop = asyncio.get_running_loop()
        asked: list[asyncio.Task[None]] = []
        while loop.time() < deadline_s:
            question = self._questions[len(asked) % INPUTS]
            strategy = self._choices.choice(STRATEGIES)
            asked.append(asyncio.create_task(self._ask(*question, strategy)))
            if len(asked) % POISON_EVERY == 0:
                asked.append(asyncio.create_task(self._poison(next(self._poisons))))
            await asyncio.sleep(REQUEST_EVERY_S)
        await asyncio.gather(*asked)

    async def _ask(self, feeds: Tensors, whole: Tensors, strategy: str) -> None:
        began = time.monotonic()
        ask, body, choice = self._client.outputs, write_tensors(feeds), PlanChoice(strategy)
        try:
            async with asyncio.timeout(PATIENCE_S):
                found = await asyncio.to_thread(ask, self._model, body, names.NPZ, choice)
        except (ImbrexError, TimeoutError) as error:
            self.outcome.lost.append(f"{strategy or 'in force'}: {error or 'no answer in time'}")
            return
        self.outcome.seconds.append(time.monotonic() - began)
        self.outcome.wrong += not compare(found.arrays, whole).max_rel_error <= EXACT

    async def _poison(self, feeds: Tensors) -> None:
        """A request whose answer, if any, nobody looks at."""
        self.outcome.poison += 1
        ask, body = self._client.outputs, write_tensors(feeds)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.to_thread(ask, self._model, body, names.NPZ)
        except BadRequest:
            pass
        except (ImbrexError, TimeoutError) as error:
            self.outcome.lost.append(f"poison: {error or 'no answer in time'}")


async def measure(
    minutes: float, seed: int, where: str, engines: Sequence[str] = ()
) -> dict[str, Any]:
    """Everything that is printed."""
    start: Any = {"here": here, "lab": in_the_lab, "pair": with_two}[where]
    model, pace = (LARGER, 1.0) if engines else (MODEL, PACES[0])
    if engines:
        start = partial(start, engines=engines)
    with tempfile.TemporaryDirectory(prefix="imbrex-chaos-") as name:
        async with start(Path(name), WORKERS, pace, model) as place:
            stream, harms = Stream(place, seed, model), list[Harm | PairHarm]([Harm(place, seed)])
            if place.house is not None:
                harms.append(PairHarm(place.house, seed))
            deadline_s = asyncio.get_running_loop().time() + minutes * 60
            going = (harm.until(deadline_s) for harm in harms)
            await asyncio.gather(stream.until(deadline_s), *going)
            computed_with = Counter(
                str(device.facts["engine"]) for device in place.client.devices()
            )
        errors = _tracebacks(Path(name))
    outcome, ordered = stream.outcome, sorted(stream.outcome.seconds)
    done = sum((harm.done for harm in harms), Counter())
    return {
        "requests": len(outcome.seconds) + len(outcome.lost),
        "faults": done.total(),
        "lost": len(outcome.lost),
        "wrong": outcome.wrong,
        "poison": outcome.poison,
        "p50_s": statistics.median(ordered) if ordered else None,
        "p99_s": ordered[int(0.99 * (len(ordered) - 1))] if ordered else None,
        "worst_s": ordered[-1] if ordered else None,
        "kinds": dict(done),
        "losses": outcome.lost[:20],
        "tracebacks": errors,
        "minutes": minutes,
        "seed": seed,
        "where": where,
        "workers": WORKERS,
        "engines": dict(computed_with),
        "model": model,
    }


def _tracebacks(folder: Path) -> list[str]:
    """What daemons that still run have logged of errors in imbrex itself."""
    found = []
    for file in sorted(folder.rglob("log.txt")):
        lines = file.read_text(errors="replace").splitlines()
        places = [place for place, line in enumerate(lines) if "Traceback" in line]
        found += ["\n".join(lines[place : place + _TRACEBACK_LINES]) for place in places]
    return found[:_MOST_TRACEBACKS]


def main() -> int:
    """Prints the result; fails if a request was lost or an answer wrong."""
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lab", action="store_true", help="in network namespaces (root only)")
    parser.add_argument("--engines", action="store_true", help="ncnn on every other device")
    parser.add_argument("--pair", action="store_true", help="there, with two coordinators")
    parser.add_argument("--liars", type=int, default=0, metavar="TRIES", help="devices that lie")
    chosen = parser.parse_args()
    if chosen.engines and chosen.pair:
        parser.error("--engines is for one coordinator: leave out --pair")
    if chosen.engines and find_spec("ncnn") is None:
        parser.error("--engines needs ncnn: pip install 'imbrex[ncnn]'")
    if chosen.liars:
        found = asyncio.run(liars.measure(chosen.liars, MODEL))
        emit(found, chosen, "\n".join(liars.lines(found)))
        return int(liars.is_bad(found))
    where = "pair" if chosen.pair else "lab" if chosen.lab else "here"
    engines = ENGINES if chosen.engines else ()
    result = asyncio.run(measure(chosen.minutes, chosen.seed, where, engines))
    median, rare = result["p50_s"] or 0.0, result["p99_s"] or 0.0
    text = (
        f"{result['requests']} requests, {result['faults']} faults: {result['lost']} lost, "
        f"{result['wrong']} wrong; median {median:.2f} s, 99 % {rare:.2f} s"
    )
    emit(result, chosen, text)
    return 1 if result["lost"] or result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
