"""One proposal per operator of the table: random attributes, sensible or not."""

from tests.models.proposals.elementwise import ELEMENTWISE
from tests.models.proposals.fused import FUSED
from tests.models.proposals.indexing import INDEXING
from tests.models.proposals.layout import LAYOUT
from tests.models.proposals.mixing import MIXING
from tests.models.proposals.rows import ROWS
from tests.models.proposals.windowed import WINDOWED
from tests.models.random_graphs import Proposal

PROPOSALS: dict[str, Proposal] = {
    **WINDOWED,
    **ELEMENTWISE,
    **INDEXING,
    **LAYOUT,
    **MIXING,
    **ROWS,
    **FUSED,
}
