"""The demo's progress: a bar on a terminal that says what is being done, lines elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from imbrex import terminal

Progress = Callable[[str], None]
# How many different lines a demo of four devices reports; the bar fills by each new one.
_USUAL_LINES = 40


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """Reports on standard error; a text with a line break stays, an empty one ends the bar, so that
    results can be printed.
    """
    console, last = terminal.err(), [""]

    def line(text: str) -> None:
        if text and text != last[0]:
            console.print(text.rstrip())
        last[0] = text

    if not console.is_terminal:
        yield line
        return
    columns = (BarColumn(bar_width=24), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=_USUAL_LINES)

        def move(text: str) -> None:
            if not text:
                bar.stop()
            elif text.endswith("\n"):
                bar.console.print(text.rstrip())
            elif text != last[0]:
                # It never seems to be done before it is.
                bar.update(task, description=text)
                bar.advance(task, (_USUAL_LINES - bar.tasks[0].completed) / _USUAL_LINES)
            last[0] = text

        yield move
