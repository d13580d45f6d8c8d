"""Hand-written JSON documents, read strictly by pydantic, whose errors get a cure.

A document's type is a pydantic dataclass. Scalars must have the exact JSON type: `true` is not a
number, and `1` is not a boolean.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

MOST_ITEMS = 100_000  # labels or anchors in one list
# The configuration of a document's dataclasses.
DOCUMENT = ConfigDict(extra="forbid")

# What pydantic calls a key that there is not, of models and of dataclasses.
_UNKNOWN = frozenset({"extra_forbidden", "unexpected_keyword_argument"})

# Replacements for messages of pydantic that speak of Python.
_ORDERS = {
    "dataclass_type": "Write a JSON object",
    "dict_type": "Write a JSON object",
    "tuple_type": "Write a list",
    "too_short": "Write a list of at least {min_length}",
    "too_long": "Write a list of at most {max_length}",
}

Read = TypeVar("Read")


def _not_blank(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("blank", "Input should be a string that is not empty")
    return text


String = Annotated[str, Strict()]
Text = Annotated[String, AfterValidator(_not_blank)]
Flag = Annotated[bool, Strict()]
Integer = Annotated[int, Strict()]
Number = Annotated[float, Strict(), Field(gt=-1e300, lt=1e300, allow_inf_nan=False)]
Positive = Annotated[float, Strict(), Field(gt=0, lt=1e300, allow_inf_nan=False)]
Share = Annotated[float, Strict(), Field(gt=0, le=1, allow_inf_nan=False)]


class Problem(Exception):
    """A key that cannot be used: what is wrong with it and the cure."""

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(what)
        self.what = what
        self.cure = cure


def first_problem(error: ValidationError, whole: str = "the file") -> str:
    """What pydantic found first: the key, with dots (`whole` if it is about the whole document),
    and what is wrong with it.
    """
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"])) or whole
    return f"{key} is unknown" if first["type"] in _UNKNOWN else f"{key}: {first['msg'].lower()}"


def wrong(cure: str, what: str = "", key: str = "") -> PydanticCustomError:
    """The error that a validator of a key raises: `what` is wrong with it (default: its value is
    shown), or with the `key` of the object under it.
    """
    return PydanticCustomError("key", "{cure}", {"key": key, "cure": cure, "what": what})


def read(
    kind: type[Read], document: Any, where: str, inner: Mapping[str, type] | None = None
) -> Read:
    """Reads `document`, called `where` in errors, as a `kind`; `inner` maps keys to the types of
    the objects under them.

    Raises:
        Problem: a key is missing, unknown or wrong.
    """
    if not isinstance(document, dict):
        raise Problem(f"{where} is {_shown(document)}", "Write a JSON object there")
    try:
        return TypeAdapter(kind).validate_python(document)
    except ValidationError as error:
        types = {where: kind, **(inner or {})}
        raise _problem(error.errors(include_url=False)[0], document, where, types) from error


def _problem(
    error: ErrorDetails, document: Mapping[str, Any], where: str, types: Mapping[str, type]
) -> Problem:
    """The first problem that pydantic found, as one of the innermost key."""
    context = error.get("ctx", {})
    loc = [*error["loc"], *([context["key"]] if context.get("key") else ())]
    value: Any = document
    holder, key = document, ""
    for depth, part in enumerate(loc, start=1):
        # A location also contains the chosen type of a union, which is not in the document.
        if isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        elif isinstance(value, dict) and (part in value or depth == len(loc)):
            where, holder, key = key or where, value, str(part)
            value = value.get(part)
    shown = f"key {key!r} of {where}"
    if error["type"] in _UNKNOWN:
        known = types.get(where)
        keys = ", ".join(sorted(field.name for field in fields(known))) if known else "others"
        return Problem(f"{shown} is unknown", f"Remove it; the keys are {keys}")
    if context.get("what"):
        return Problem(f"{shown} {context['what']}", context["cure"])
    if key not in holder:
        return Problem(f"{shown} is missing", f"Add it{_wanted(error, ': ')}")
    return Problem(f"{shown} is {_shown(holder[key])}", _wanted(error))


def _wanted(error: ErrorDetails, before: str = "") -> str:
    """What pydantic expects, as an instruction."""
    if error["type"] in _ORDERS:
        return before + _ORDERS[error["type"]].format_map(error.get("ctx", {}))
    if error["type"] == "missing":
        return "" if before else "Write more items"
    said = error["msg"].removeprefix("Input should be ")
    if said == error["msg"]:
        return before + said
    value = "a value " if said.startswith(("greater", "less")) else ""
    return f"{before}Write {value}{said}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
