"""JSON schemas of our plain values, for the OpenAPI document: made from their types, so that a
field more is documented by being there.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter


def schema_of(kind: Any) -> dict[str, Any]:
    """The schema of a dataclass or model as it is answered. A float may be null: JSON knows no
    infinity, and what is not known yet is one.
    """
    return inlined(TypeAdapter(kind).json_schema(mode="serialization"))


def answer(
    schema: dict[str, Any], text: str, status: HTTPStatus = HTTPStatus.OK
) -> dict[int | str, dict[str, Any]]:
    """A route's `responses` for an answer that is always of this schema."""
    return {int(status): {"description": text, "content": {"application/json": {"schema": schema}}}}


def object_of(**properties: dict[str, Any]) -> dict[str, Any]:
    """An object that has all of these."""
    return {"type": "object", "required": list(properties), "properties": properties}


def list_of(items: dict[str, Any], **more: int) -> dict[str, Any]:
    """An array of such items."""
    return {"type": "array", "items": items, **more}


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without references: an OpenAPI document keeps its definitions elsewhere."""
    definitions = schema.pop("$defs", {})

    def resolved(part: Any) -> Any:
        if isinstance(part, list):
            return [resolved(each) for each in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return resolved(definitions[part["$ref"].rpartition("/")[2]])
        found = {key: resolved(value) for key, value in part.items() if key != "title"}
        if found.get("type") == "number":
            found["type"] = ["number", "null"]
        return found

    made: dict[str, Any] = resolved(schema)
    return made
