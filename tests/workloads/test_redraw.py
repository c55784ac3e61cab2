import jax.numpy as jnp
import numpy as np
import pytest

import workloads
from workloads.redraw import redraw


@pytest.mark.parametrize("draw", workloads.DRAWS)
def test_redrawn_inputs(draw):
    rng = np.random.default_rng(0)
    normal = rng.standard_normal((64, 128), np.float32).astype(jnp.bfloat16)
    positive = rng.uniform(0.1, 1, (256,)).astype(np.float32)
    mask = np.where(np.tri(32, dtype=bool), 0, -1e9).astype(np.float32)
    mask[0, 1] = -np.inf
    given = (normal, positive, np.zeros(32, np.float32), np.arange(9), mask)
    drawn = redraw(given, np.random.default_rng(1), draw)
    again = redraw(given, np.random.default_rng(1), draw)
    other = redraw(given, np.random.default_rng(2), draw)
    for array, new, twin in zip(given, drawn, again, strict=True):
        assert new.shape == array.shape and new.dtype == array.dtype
        assert new.tobytes() == twin.tobytes()
    assert drawn[0].tobytes() not in (normal.tobytes(), other[0].tobytes())
    assert 0 < drawn[1].min() and drawn[1].max() <= 1
    assert (drawn[2].std() > 0) == (draw == "shifted")
    assert drawn[3].tolist() == [*range(9)]
    assert (drawn[4] < -1e8).sum() == (mask < -1e8).sum() and np.isneginf(drawn[4]).sum() == 1
    if draw == "nominal":
        assert sorted(drawn[0].ravel()) == sorted(normal.ravel())
    if draw == "structured":
        rows = drawn[0].astype(np.float32).std(axis=1)
        assert rows.max() > 1.5 * rows.min()
