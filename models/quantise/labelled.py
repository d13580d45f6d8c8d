"""Ground truth in the text files of YOLO's datasets: one line for each object, with the number of
its class and its box as shares of the picture (centre x, centre y, width, height). A file is called
as its picture, and lies beside it, or in the folder `labels` beside the pictures' folder.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from models.vision.quality import GroundTruth
from protos.daemon.files import decoded
from protos.errors import BadRequest

# Tens of thousands of objects.
_MOST_BYTES = 1_000_000
_FIELDS = 5


def truth_of(
    picture: Path, size: tuple[int, int], labels: Sequence[str]
) -> tuple[GroundTruth, ...] | None:
    """The objects on a picture of this width and height; None if there is no file.

    Raises:
        BadRequest: a line that is not such an object, or a file that cannot be read.
    """
    beside = picture.with_suffix(".txt")
    files = (beside, picture.parent.parent / "labels" / beside.name)
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        return None
    try:
        with found.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise _wrong(found, f"has more than {_MOST_BYTES:,} bytes")
        text = decoded(data)
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(found, f"cannot be read ({error})") from error
    lines = enumerate(text.splitlines(), 1)
    return tuple(_object(found, n, line, size, labels) for n, line in lines if line.strip())


def _object(
    file: Path, number: int, line: str, size: tuple[int, int], labels: Sequence[str]
) -> GroundTruth:
    try:
        which, x, y, width, height = map(float, line.split())
    except ValueError as error:
        raise _wrong(file, f"line {number} does not have {_FIELDS} numbers") from error
    if not which.is_integer() or not 0 <= which < len(labels):
        raise _wrong(file, f"line {number} is of class {which:g}, and there are {len(labels)}")
    shares = (x, y, width, height)
    if not all(math.isfinite(share) and 0 <= share <= 1 for share in shares):
        raise _wrong(file, f"line {number} has a box that is not within 0 and 1")
    across, down = size
    box = (
        (x - width / 2) * across,
        (y - height / 2) * down,
        (x + width / 2) * across,
        (y + height / 2) * down,
    )
    return GroundTruth(labels[int(which)], box)


def _wrong(file: Path, what: str) -> BadRequest:
    return BadRequest(
        cause=f"{file}: {what}",
        cure="Write one line for each object: class, centre x, centre y, width, height (from 0 to "
        "1); or remove the file, which counts as the picture's ground truth",
    )
