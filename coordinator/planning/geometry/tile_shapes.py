"""How many tiles are in each band of rows: strips, grids, and bands such as 3, 3 and 2.

A shape has no sizes. With weights, each band's height is its tiles' share of the sum, and each
tile's width its share of the band, so any area can be given to any device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from models.cut.tiles import MapTile, even_spans, on_map, places, weighted_spans


@dataclass(frozen=True, slots=True)
class TileShape:
    """`bands[i]` tiles side by side in the i-th band of rows."""

    bands: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of tiles."""
        return sum(self.bands)

    @property
    def has_columns(self) -> bool:
        """Whether some band has more than one tile."""
        return max(self.bands) > 1

    def tiles(self, height: int, width: int, weights: Sequence[float]) -> tuple[MapTile, ...]:
        """Tiles of a map, band by band, with areas in proportion to `weights`; on a small map some
        may be empty.
        """
        shares, start = [], 0
        for count in self.bands:
            shares.append(tuple(weights[start : start + count]))
            start += count
        rows = weighted_spans(places(height), [sum(share) for share in shares])
        return tuple(
            MapTile(row, col)
            for row, share in zip(on_map(height, rows), shares, strict=True)
            for col in on_map(width, weighted_spans(places(width), share))
        )

    def equal_tiles(self, height: int, width: int) -> tuple[MapTile, ...]:
        """Equal bands of equal tiles, as the published planners divide maps."""
        rows = on_map(height, even_spans(places(height), len(self.bands)))
        return tuple(
            MapTile(row, col)
            for row, count in zip(rows, self.bands, strict=True)
            for col in on_map(width, even_spans(places(width), count))
        )


def grids_of(count: int) -> tuple[TileShape, ...]:
    """Every grid of `count` tiles, from one column to one row."""
    return tuple(
        TileShape((count // rows,) * rows) for rows in range(count, 0, -1) if not count % rows
    )


def shapes_of(count: int) -> tuple[TileShape, ...]:
    """`count` tiles in any number of bands, as evenly as possible; strips first."""
    return tuple(
        TileShape(tuple(len(span) for span in even_spans(count, bands)))
        for bands in range(count, 0, -1)
    )
