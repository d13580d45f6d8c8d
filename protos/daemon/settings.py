"""The settings of a daemon: one frozen value, read once at start."""

import difflib
import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protos.daemon.files import read_text
from protos.errors import BadConfiguration

# 0: any free one.
Port: TypeAlias = Annotated[int, Field(ge=0, le=65535)]


class DaemonSettings(BaseModel):
    """What both daemons' settings have in common. `--help`, error messages and the reference show
    the description of a field.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    daemon: ClassVar[Literal["coordinator", "worker"]]

    @classmethod
    def load(
        cls,
        file: Path | None = None,
        flags: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """The settings from all sources: flags (None means not given), else the environment, else a
        TOML file, else the default.

        Raises:
            BadConfiguration: an unreadable file, an unknown key, a value out of range. Names the
                key and where it is set.
        """
        values = _in_file(file, cls.daemon) if file else {}
        where = dict.fromkeys(values, str(file))
        prefix = cls.prefix()
        for key, text in environ.items():
            if key.startswith(prefix):
                name = key.removeprefix(prefix).lower()
                values[name] = cls._listed(name, text)
                where[name] = key
        given = {key: value for key, value in (flags or {}).items() if value is not None}
        where |= dict.fromkeys(given, "the command line")
        try:
            return cls(**{**values, **given})
        except ValidationError as error:
            raise cls._explained(error, where) from None

    @classmethod
    def prefix(cls) -> str:
        """What the names of environment variables begin with."""
        return f"IMBREX_{cls.daemon.upper()}_"

    @classmethod
    def _listed(cls, name: str, text: str) -> Any:
        """An environment variable's value: a list has commas, or is JSON."""
        field = cls.model_fields.get(name)
        if field is None or get_origin(field.annotation) is not tuple:
            return text
        if text.startswith("["):
            try:
                return json.loads(text)
            except ValueError:
                return text
        return [part.strip() for part in text.split(",") if part.strip()]

    @classmethod
    def _explained(cls, error: ValidationError, where: Mapping[str, str]) -> BadConfiguration:
        first = error.errors()[0]
        key = str(first["loc"][0])
        source = where.get(key, "the settings")
        if first["type"] == "extra_forbidden":
            known = sorted(cls.model_fields)
            closest = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean {closest[0]!r}? " if closest else ""
            return BadConfiguration(
                cause=f"unknown {cls.daemon} setting {key!r} in {source}",
                cure=f"{hint}Known settings: {', '.join(known)}",
            )
        return BadConfiguration(
            cause=f"{cls.daemon} setting {key!r} in {source} is not usable: {first['msg']}",
            cure=cls.model_fields[key].description or "Correct it",
        )


def _in_file(file: Path, daemon: str) -> dict[str, Any]:
    """What a file says to a daemon: the table of its name, if there is one, else all of the file.
    So one file may serve both daemons.
    """
    try:
        document = tomllib.loads(read_text(file))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadConfiguration(
            cause=f"the settings file {file} cannot be read: {error}",
            cure="Correct the file, or leave it out",
        ) from error
    section = document.get(daemon)
    return dict(section) if isinstance(section, dict) else document
