"""One tile, computed by a worker and by plain onnxruntime."""

import numpy as np

from models.tensors.boxes import Box
from tests.worker.support import (
    conv_program,
    install,
    joined,
    picture,
    send,
    task_item,
    until_done,
    whole,
)


async def computes(client):
    """Has a worker compute a tile, which is what plain onnxruntime makes of it: what was sent, and
    what came back.
    """
    program, blobs = conv_program()
    x = picture()
    box = Box.whole(x.shape)
    await install(client, program, blobs)
    stream = client.exchange()
    output = {"tensor": "y", "box": box, "yields": box}
    await stream.write([task_item(program, {"x": box}, [output])])
    await send(stream, "x", box, x)
    pieces, _ = await until_done(stream)
    y = joined(pieces, box)
    np.testing.assert_allclose(y, whole(x), atol=1e-5)
    return x, y
