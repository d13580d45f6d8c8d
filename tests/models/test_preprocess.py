from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from models.graph.shapes import TensorInfo
from models.vision.detection import DetectedBox
from models.vision.drawing import annotated
from models.vision.image_input import ImageInput
from models.vision.preprocess import (
    BadImage,
    PictureLimits,
    decode_image,
    full_size,
    image_to_pixels,
    image_to_tensor,
    place,
)
from protos.errors import BadRequest
from tests.examples import examples

FLOATS = TensorInfo((1, 3, 48, 64), TensorProto.FLOAT)
RAW = ImageInput(
    name="image",
    size=(48, 64),
    resize="letterbox",
    resize_shorter=None,
    color="RGB",
    scale=1.0,
    mean=(0.0, 0.0, 0.0),
    std=(1.0, 1.0, 1.0),
    pad_value=114,
)
STRETCH = replace(RAW, resize="stretch")
CROP = replace(RAW, resize="centre-crop", resize_shorter=72)
RED, WHITE = (255, 0, 0), (255, 255, 255)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    stream = BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def noisy(width: int = 64, height: int = 48) -> Image.Image:
    pixels = np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def claimed_png(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims any size: header and a one-pixel body."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(4))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


JPEG, PNG = encoded(noisy(), "JPEG"), encoded(noisy())

BAD = {
    "empty": (b"", "empty"),
    "text": (b"no picture at all", "not an image"),
    "only the magic bytes": (PNG[:8], "not an image"),
    "a format that is not allowed": (encoded(noisy(), "TIFF"), "not an image"),
    "truncated JPEG": (JPEG[: len(JPEG) // 2], "truncated or broken"),
    "truncated PNG": (PNG[: len(PNG) // 2], "truncated or broken"),
    "broken PNG": (PNG[:60] + bytes(40) + PNG[100:], "truncated or broken"),
    "20,000 pixels wide": (encoded(Image.new("RGB", (20_000, 10))), "20000 x 10 pixels"),
    "21 MP": (claimed_png(7000, 3000), "7000 x 3000 pixels"),
    "100 MP": (claimed_png(10_000, 10_000), "10000"),
    "a bomb": (claimed_png(60_000, 60_000), "3600000000 pixels"),
    "no pixels": (claimed_png(0, 5), "not an image"),
}


@pytest.mark.parametrize("case", BAD)
def test_every_bad_image_has_a_reason_and_a_cure(case: str) -> None:
    data, reason = BAD[case]
    with pytest.raises(BadImage, match=reason) as caught:
        decode_image(data)
    assert caught.value.cure
    assert isinstance(caught.value, BadRequest)
    assert caught.value.code == "bad_image"


def test_the_size_is_judged_before_a_pixel_is_decoded() -> None:
    # The body holds one pixel: had decoding begun, the picture would be called truncated.
    with pytest.raises(BadImage, match="2000 x 1000 pixels"):
        decode_image(claimed_png(2000, 1000), PictureLimits(pixels=1_999_999))
    with pytest.raises(BadImage, match="truncated"):
        decode_image(claimed_png(2000, 1000), PictureLimits(pixels=2_000_000))


@settings(max_examples=examples(300))
@given(
    st.sampled_from(["JPEG", "PNG", "WEBP", "BMP", "GIF"]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6),
    st.floats(0, 1),
)
def test_damage_is_refused_or_decoded_and_never_anything_else(
    kind: str, damage: list[tuple[float, int]], kept: float
) -> None:
    data = bytearray(encoded(noisy(16, 12), kind))
    for place_of, value in damage:
        data[int(place_of * len(data))] = value
    try:
        image = decode_image(bytes(data[: round(kept * len(data))]))
    except BadImage:
        return
    assert image.mode == "RGB"


@given(st.binary(max_size=200))
def test_bytes_that_are_no_picture_are_refused(data: bytes) -> None:
    with pytest.raises(BadImage):
        decode_image(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF"])
def test_every_allowed_format_is_read(kind: str) -> None:
    image = decode_image(encoded(Image.new("RGB", (30, 20), RED), kind))
    assert (image.size, image.mode) == ((30, 20), "RGB")
    assert np.abs(np.asarray(image).astype(int) - RED).max() <= 3


def test_the_picture_is_turned_as_its_exif_says() -> None:
    image = Image.new("RGB", (40, 20), WHITE)
    image.paste(RED, (0, 0, 10, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright
    upright = decode_image(encoded(image, "PNG", exif=exif))
    assert upright.size == (20, 40)
    assert upright.getpixel((5, 5)) == RED
    assert upright.getpixel((5, 30)) == WHITE


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_transparency_shows_white_paper(mode: str) -> None:
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 0)).convert(mode if mode != "PA" else "P")
    assert decode_image(encoded(image)).getpixel((4, 4)) == WHITE


def test_fully_transparent_picture_is_shown() -> None:
    image = noisy()
    image.putalpha(0)
    exactly: dict[str, dict[str, object]] = {"PNG": {}, "WEBP": {"lossless": True, "exact": True}}
    for kind, options in exactly.items():
        seen = decode_image(encoded(image, kind, **options))
        assert (np.asarray(seen) == np.asarray(noisy())).all()


@pytest.mark.parametrize(
    ("ink", "paper"),
    [((0, 0, 0), WHITE), (RED, WHITE), (WHITE, (0, 0, 0)), ((250, 250, 240), (0, 0, 0))],
)
def test_drawing_on_transparency_stays_visible(
    ink: tuple[int, int, int], paper: tuple[int, int, int]
) -> None:
    image = Image.new("RGBA", (64, 64), (255, 255, 255, 0))
    image.paste((*ink, 255), (16, 16, 48, 48))
    for mode in ("RGBA", "LA") if ink[0] == ink[1] == ink[2] else ("RGBA",):
        seen = decode_image(encoded(image.convert(mode)))
        assert (seen.getpixel((0, 0)), seen.getpixel((32, 32))) == (paper, ink)


def test_black_and_white_on_transparency_are_both_visible() -> None:
    image = Image.new("RGBA", (64, 64), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 16, 64))
    image.paste((255, 255, 255, 255), (48, 0, 64, 64))
    seen = decode_image(encoded(image))
    assert [seen.getpixel((x, 32)) for x in (8, 32, 56)] == [(0, 0, 0), (128, 128, 128), WHITE]


def photo(width: int, height: int, **options: object) -> bytes:
    """A grey picture with a red square from a quarter to a half of either side."""
    image = Image.new("RGB", (width, height), (90, 90, 90))
    image.paste((250, 0, 0), (width // 4, height // 4, width // 2, height // 2))
    return encoded(image, "JPEG", quality=80, **options)


def red_box(image: Image.Image) -> tuple[float, float, float, float]:
    """Where the square is, as shares of the picture."""
    red = np.argwhere(np.asarray(image)[:, :, 1] < 45)
    (top, left), (bottom, right) = red.min(axis=0), red.max(axis=0) + 1
    return left / image.width, top / image.height, right / image.width, bottom / image.height


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize(
    ("size", "decoded"), [((640, 480), (320, 240)), ((1000, 300), (500, 150)), ((400, 250), None)]
)
def test_a_jpeg_beyond_the_limit_is_decoded_smaller(
    size: tuple[int, int], decoded: tuple[int, int] | None, orientation: int
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = photo(*size, exif=exif)
    image = decode_image(data, PictureLimits(pixels=100_000))
    turn = slice(None, None, -1 if orientation == 6 else 1)
    assert image.size == (decoded or size)[turn]
    assert full_size(image) == size[turn]
    whole = decode_image(data, PictureLimits(pixels=10_000_000))
    assert red_box(image) == pytest.approx(red_box(whole), abs=0.01)
    for form in (RAW, STRETCH, CROP):
        tensor, placement = image_to_tensor(image, form, FLOATS)
        wanted, wanted_placement = image_to_tensor(whole, form, FLOATS)
        assert placement == wanted_placement
        assert np.abs(tensor - wanted).mean() < 3


def test_phones_photographs_are_taken_within_the_memory_of_the_limit() -> None:
    limits = PictureLimits()
    for width, height in ((6000, 4000), (8160, 6144)):
        image = decode_image(photo(width, height), limits)
        assert image.width * image.height <= limits.pixels
        assert full_size(image) == (width, height)
    decode_image(photo(6000, 4000, progressive=True), limits)
    with pytest.raises(BadImage, match="8160 x 6144"):  # it would be kept as a whole
        decode_image(photo(8160, 6144, progressive=True), limits)
    with pytest.raises(BadImage, match="9000 x 8950"):
        decode_image(photo(9_000, 8_950), limits)


def test_no_file_says_what_its_size_was() -> None:
    about = PngInfo()
    about.add_text("imbrex.full_size", "9x9")
    image = decode_image(encoded(noisy(), pnginfo=about))
    assert full_size(image) == image.size


def test_boxes_are_drawn_where_the_picture_shows_them() -> None:
    data = photo(640, 480)
    box = (160.0, 120.0, 320.0, 240.0)
    item = DetectedBox("x", 1, 0.5, box)
    image = decode_image(data, PictureLimits(pixels=100_000))
    drawn = np.asarray(annotated(image, [item])).astype(int)
    changed = np.argwhere(np.abs(drawn - np.asarray(image)).sum(axis=2) > 60)
    assert changed.max(axis=0) == pytest.approx([120, 160], abs=3)


def test_sixteen_bit_grey_keeps_its_scale() -> None:
    grey = Image.fromarray(np.full((4, 4), 0x80FF, dtype=np.uint16))
    assert decode_image(encoded(grey)).getpixel((1, 1)) == (128, 128, 128)


def test_raw_pixels_reach_the_tensor_unchanged() -> None:
    image = noisy(64, 48)
    tensor, placement = image_to_tensor(image, RAW, FLOATS)
    assert (tensor.shape, tensor.dtype) == ((1, 3, 48, 64), np.float32)
    assert np.array_equal(tensor[0].transpose(1, 2, 0), np.asarray(image))
    assert (placement.scale_x, placement.left, placement.top) == (1.0, 0, 0)


def test_normalisation_is_scale_then_mean_then_std() -> None:
    form = replace(RAW, scale=1 / 255, mean=(0.5, 0.25, 0.0), std=(0.5, 1.0, 2.0))
    tensor, _ = image_to_tensor(Image.new("RGB", (64, 48), (255, 51, 102)), form, FLOATS)
    assert tensor[0, :, 10, 10] == pytest.approx([1.0, -0.05, 0.2], abs=1e-6)


def test_a_letterbox_is_padded_evenly_with_grey() -> None:
    pixels, placement = image_to_pixels(Image.new("RGB", (128, 48), RED), RAW)
    assert (placement.left, placement.top) == (0, 12)
    column = pixels[0, :, :, 30].T
    assert [tuple(map(int, column[y])) for y in (0, 11, 12, 35, 36, 47)] == [
        (114, 114, 114),
        (114, 114, 114),
        RED,
        RED,
        (114, 114, 114),
        (114, 114, 114),
    ]


@pytest.mark.parametrize("width", [100, 341, 500])
def test_a_centre_crop_equals_resizing_everything_and_cropping(width: int) -> None:
    image = noisy(width, 97)
    pixels, placement = image_to_pixels(image, CROP)
    shown = round(width * placement.scale_x), round(97 * placement.scale_y)
    whole = image.resize(shown, Image.Resampling.BILINEAR)
    left, top = -placement.left, -placement.top
    expected = np.asarray(whole.crop((left, top, left + 64, top + 48)))
    assert np.abs(pixels[0].transpose(1, 2, 0).astype(int) - expected).max() <= 1


@pytest.mark.parametrize("form", [RAW, STRETCH, CROP])
@pytest.mark.parametrize("size", [(1, 1), (19_999, 1), (1, 19_999)])
def test_the_thinnest_pictures_fit(form: ImageInput, size: tuple[int, int]) -> None:
    pixels, _ = image_to_pixels(Image.new("RGB", size, RED), form)
    assert pixels.shape == (1, 3, 48, 64)
    assert tuple(map(int, pixels[0, :, 24, 32])) == RED


sizes = st.integers(60, 900)


@pytest.mark.parametrize("form", [RAW, STRETCH])
@given(sizes, sizes, st.tuples(*[st.floats(0, 1)] * 4))
def test_boxes_come_back_to_where_they_were(
    form: ImageInput, width: int, height: int, edges: tuple[float, ...]
) -> None:
    placement = place(width, height, form)
    x0, x1 = sorted((edges[0] * width, edges[1] * width))
    y0, y1 = sorted((edges[2] * height, edges[3] * height))
    shown = [
        x0 * placement.scale_x + placement.left,
        y0 * placement.scale_y + placement.top,
        x1 * placement.scale_x + placement.left,
        y1 * placement.scale_y + placement.top,
    ]
    assert -1 <= min(shown) <= max(shown) <= 65
    back = placement.to_image(np.array([shown], dtype=np.float32))[0]
    assert back == pytest.approx([x0, y0, x1, y1], abs=0.01)


@settings(max_examples=examples(40))
@given(st.integers(80, 400), st.integers(80, 400), st.sampled_from([RAW, STRETCH, CROP]))
def test_the_placement_tells_where_the_pixels_really_are(
    width: int, height: int, form: ImageInput
) -> None:
    """A square painted in the picture is found in the tensor, and maps back onto itself."""
    image = Image.new("RGB", (width, height), (0, 0, 0))
    painted = (width // 2 - 12, height // 2 - 9, width // 2 + 12, height // 2 + 11)
    image.paste(RED, painted)
    pixels, placement = image_to_pixels(image, replace(form, pad_value=0))
    rows, columns = np.nonzero(pixels[0, 0] > 127)
    seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    back = placement.to_image(np.array([seen], dtype=np.float32))[0]
    # Half a model pixel of blur on each side.
    assert back == pytest.approx(painted, abs=0.75 / min(placement.scale_x, placement.scale_y))


def test_boxes_are_clipped_to_the_picture() -> None:
    placement = place(100, 50, RAW)
    outside = np.array([[-50, -50, 500, 500]], dtype=np.float32)
    assert placement.to_image(outside)[0].tolist() == [0, 0, 100, 50]


@pytest.mark.parametrize("form", [RAW, STRETCH, CROP])
def test_bgr_is_the_same_picture_with_its_channels_turned(form: ImageInput) -> None:
    rgb, placed = image_to_pixels(noisy(100, 70), form)
    bgr, also = image_to_pixels(noisy(100, 70), replace(form, color="BGR"))
    assert (bgr == rgb[:, ::-1]).all()
    assert bgr.flags.c_contiguous
    assert placed == also
    only_blue = replace(form, color="BGR", mean=(255.0, 0.0, 0.0))
    tensor, _ = image_to_tensor(Image.new("RGB", (64, 48), (0, 0, 255)), only_blue, FLOATS)
    assert not tensor[0, :, 20:30, 20:30].any()  # the mean is of the channels as they are fed
