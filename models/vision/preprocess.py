"""From the bytes of a picture to a model's input, and from its pixels back to the picture's.

Pictures may come from any client: few formats are accepted, dimensions are checked before a single
pixel is decoded, and every failure is a `BadImage` that says what to send instead.
"""

import struct
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from models.graph.shapes import TensorInfo
from models.vision.image_input import ImageInput, Placement
from protos.errors import BadRequest

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
_JPEG = ("JPEG", "MPO")
# EXIF's orientations that exchange width and height.
_TURNED = (5, 6, 7, 8)
# Of 255. A picture that is fainter everywhere is shown as if it had no transparency.
_LEAST_ALPHA, SOLID = 16, 128
# What differs by less from the paper is not seen; that much of what is seen at best is enough.
_CONTRAST, _ENOUGH = 32, 0.9
# What Pillow's decoders raise about broken data; anything else is a bug of ours.
BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    struct.error,
    UserWarning,  # where warnings are errors
)


class BadImage(BadRequest):
    """The body is not a usable picture: `reason` says why, `cure` what to send instead."""

    code: ClassVar[str] = "bad_image"

    def __init__(self, *, reason: str, cure: str) -> None:
        super().__init__(cause=f"The image cannot be used: {reason}", cure=cure)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """Refuse pictures of more pixels, or with a side of `side` pixels or longer. A JPEG may have
    `jpeg` times as many: it is decoded at half its size or less.

    20 MP decode to 60 MB, which a Pi can spare; phones' pictures have 12 to 50.
    """

    pixels: int = 20_000_000
    side: int = 20_000
    jpeg: int = 4


# The key of a picture's `info` for its size, if it was decoded at a smaller one.
_FULL_SIZE = "imbrex.full_size"
# Rows and columns of a transparent picture that decide on the paper behind it.
_LOOKED_AT = 1024
# The coefficients of a progressive JPEG are all kept: three channels of two bytes.
_PROGRESSIVE_BYTES, _RGB_BYTES = 6, 3


def full_size(image: Image.Image) -> tuple[int, int]:
    """Width and height of the picture that was sent, in whose pixels answers are."""
    width, height = image.info.get(_FULL_SIZE, image.size)
    return width, height


def decode_image(data: bytes, limits: PictureLimits | None = None) -> Image.Image:
    """The picture in `data` as RGB, rotated by its EXIF data, without transparency. A JPEG beyond
    the limit of pixels is smaller than it was (`full_size`).

    Raises:
        BadImage: empty, of no known format, too large, truncated or broken.
    """
    if not data:
        raise BadImage(reason="the body is empty", cure="Send the bytes of a JPEG or PNG file")
    limits = limits or PictureLimits()
    picture = _opened(data, limits)
    try:
        full, (width, height), scale = picture.size, picture.size, 1
        # A JPEG beyond this number of pixels is decoded at a half, a quarter or an eighth.
        while picture.format in _JPEG and width * height > limits.pixels * scale**2:
            scale *= 2
        if scale > 1:
            picture.draft(None, (width // scale, height // scale))
        reduced, turned = picture.size, False
        with suppress(*BROKEN):  # damaged EXIF data is ignored
            if reduced != full:
                turned = picture.getexif().get(ExifTags.Base.Orientation) in _TURNED
        picture.load()
        with suppress(*BROKEN):
            ImageOps.exif_transpose(picture, in_place=True)  # else upright pictures are copied, too
        image = _as_rgb(picture)
        image.info.pop(_FULL_SIZE, None)
        if reduced != full:
            image.info[_FULL_SIZE] = full[::-1] if turned else full
        return image
    except (*BROKEN, Image.DecompressionBombError) as error:
        cure = "Check that the whole file was sent and that other programs can open it"
        raise BadImage(reason=f"it is truncated or broken ({error})", cure=cure) from error


def image_to_tensor(
    image: Image.Image, form: ImageInput, info: TensorInfo
) -> tuple[NDArray[Any], Placement]:
    """The model's input, described by `info`, and where the picture lies in it: as pixels if the
    model takes these, or they may travel in its place.
    """
    pixels, placement = image_to_pixels(image, form)
    if np.uint8 in info.accepted:
        return pixels, placement
    return form.pixels.values(pixels).astype(info.dtype, copy=False), placement


def image_to_pixels(image: Image.Image, form: ImageInput) -> tuple[NDArray[np.uint8], Placement]:
    """The picture resized as `form` says, of its shape, uint8, before any normalisation."""
    placement = place(*full_size(image), form)
    height, width = form.size
    if form.resize == "centre-crop":
        # Only the part that is kept is resized: enlarging all of a thin strip would take gigabytes.
        x, y = (part / whole for part, whole in zip(image.size, full_size(image), strict=True))
        left, top, right, bottom = placement.seen(width, height)
        kept = (left * x, top * y, right * x, bottom * y)
        shown = image.resize((width, height), Image.Resampling.BILINEAR, box=kept)
    else:
        size = placement.width * placement.scale_x, placement.height * placement.scale_y
        part = image.resize((round(size[0]), round(size[1])), Image.Resampling.BILINEAR)
        shown = Image.new("RGB", (width, height), (form.pad_value,) * 3)
        shown.paste(part, (placement.left, placement.top))
    pixels = np.asarray(shown.convert("L") if form.color == "GREY" else shown, dtype=np.uint8)
    if form.color == "BGR":  # as OpenCV reads pictures
        pixels = pixels[:, :, ::-1]
    pixels = pixels.reshape(height, width, -1)
    if not form.layout.endswith("C"):
        pixels = pixels.transpose(2, 0, 1)
    return np.ascontiguousarray(pixels.reshape(form.shape)), placement


def place(width: int, height: int, form: ImageInput) -> Placement:
    """Where a picture of (width, height) pixels comes to lie in the input `form`."""
    model_height, model_width = form.size
    if form.resize == "stretch":
        shown_width, shown_height = model_width, model_height
    elif form.resize_shorter is not None:  # rounded down, as torchvision does
        shorter, side = min(width, height), form.resize_shorter
        shown_width = max(side, side * width // shorter)
        shown_height = max(side, side * height // shorter)
    else:
        scale = min(model_width / width, model_height / height)
        shown_width, shown_height = max(1, round(width * scale)), max(1, round(height * scale))
    return Placement(
        width=width,
        height=height,
        scale_x=shown_width / width,
        scale_y=shown_height / height,
        left=round((model_width - shown_width) / 2),
        top=round((model_height - shown_height) / 2),
    )


def _opened(data: bytes, limits: PictureLimits) -> Image.Image:
    """The picture with its header parsed and its pixels not yet decoded, within the limits."""
    try:
        picture = Image.open(BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadImage(reason=str(error), cure="Send a smaller picture") from error
    except (UnidentifiedImageError, *BROKEN) as error:
        known = ", ".join(FORMATS)
        raise BadImage(
            reason="it is not an image of a known format", cure=f"Send one of {known}"
        ) from error
    width, height = picture.size
    size = f"it has {width} x {height} pixels"
    if max(width, height) >= limits.side:
        cure = f"Send one with sides shorter than {limits.side} pixels"
        raise BadImage(reason=size, cure=cure)
    # WebP's decoder keeps three pictures of four bytes a pixel, others one.
    most = limits.pixels // 2 if picture.format == "WEBP" else limits.pixels
    if picture.format in _JPEG:
        most *= limits.jpeg
        if picture.info.get("progressive"):
            largest_bytes = limits.pixels * (_PROGRESSIVE_BYTES + _RGB_BYTES)
            most = largest_bytes // (_PROGRESSIVE_BYTES + _RGB_BYTES // 2)
    if width * height > most:
        raise BadImage(reason=size, cure=f"Send one of at most {most} pixels")
    if min(width, height) < 1:
        raise BadImage(reason=size, cure="Send a picture that has pixels")
    return picture


def _as_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode == "RGB":
        return picture
    if picture.mode.startswith("I"):  # 16-bit grey
        grey = np.clip(np.asarray(picture), 0, 65535) >> 8
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if "A" in picture.mode.upper() or "transparency" in picture.info:
        shown = picture if picture.mode == "RGBA" else picture.convert("RGBA")
        alpha = shown.getchannel("A")
        levels = [shown.getchannel(place).getextrema() for place in range(3)]
        is_one_colour = all(np.ptp(level) == 0 for level in levels)
        if not is_one_colour and not any(alpha.histogram()[_LEAST_ALPHA:]):
            return shown.convert("RGB")  # nobody means to send nothing
        paper = Image.new("RGB", picture.size, _paper(shown))
        paper.paste(shown, mask=alpha)
        return paper
    return picture.convert("RGB")


def _paper(shown: Image.Image) -> str:
    """The colour behind a transparent picture: white, unless much of it would not be seen there. Of
    a large one, some pixels are looked at.
    """
    size = (min(shown.width, _LOOKED_AT), min(shown.height, _LOOKED_AT))
    sample = shown.resize(size, Image.Resampling.NEAREST)
    solid = sample.getchannel("A").point([255 * (alpha >= SOLID) for alpha in range(256)])
    counts = np.array(sample.convert("L").histogram(solid), dtype=np.float64)
    levels = np.arange(256)
    seen = {
        colour: counts[abs(levels - level) >= _CONTRAST].sum()
        for colour, level in (("white", 255), ("black", 0), ("grey", 128))
    }
    best = max(seen, key=lambda colour: seen[colour])
    return "white" if seen["white"] >= _ENOUGH * seen[best] else best
