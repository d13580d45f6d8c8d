"""A package with engines as entry points, as `pip install` leaves it."""

from tests.worker.support import ROOT


def plug(folder, monkeypatch, **engines):
    """Installs engines (name: module:class of tests.worker) for this process and its children."""
    package = folder / "packages"
    (package / "toy-0.dist-info").mkdir(parents=True)
    (package / "toy-0.dist-info" / "METADATA").write_text("Name: toy\nVersion: 0\n")
    (package / "toy-0.dist-info" / "entry_points.txt").write_text(
        "[imbrex.engines]\n"
        + "".join(f"{name} = tests.worker.{where}\n" for name, where in engines.items())
    )
    monkeypatch.setenv("PYTHONPATH", f"{package}:{ROOT}")
    monkeypatch.syspath_prepend(str(package))


def plant(folder, monkeypatch, *names):
    """Installs engines of `planted_engines` under their names in lower case."""
    engines = {name.lower(): f"planted_engines:{name}" for name in names}
    plug(folder, monkeypatch, **engines)
