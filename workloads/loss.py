"""Losses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from workloads.registry import register
from workloads.workload import ArraySpec, Preset, Tolerance, Workload


def cross_entropy(CONFIG, hidden, weight, labels):
    """Mean over the tokens of logsumexp(z) - z[label], with z = hidden @ weight; float32."""
    del CONFIG
    log_probabilities = jax.nn.log_softmax(hidden @ weight, axis=-1)
    labelled = jax.nn.one_hot(labels, weight.shape[1])  # float32, as is all that comes after it
    return -jnp.mean(jnp.sum(labelled * log_probabilities, axis=-1))


def _generate_cross_entropy(
    rng: np.random.Generator, preset: Preset, draw: str
) -> dict[str, np.ndarray]:
    """Labels that the logits partly predict, with a confidence that differs between tokens.

    With the published draw (normal hidden states, uniform labels) the loss is log(V) + 0.8 whatever
    the labels are, and so it is for any part of the tokens. Here each token leans towards its
    label, by 1.5 to 6 in the logit; every stretch of 64 tokens has its own lean, the last one the
    least, so that other labels, and a stretch of tokens left out or taken twice, change the mean.
    The last features weigh more than the first, so that a last block of them is missed.
    `shifted` moves all logits of a token by a common amount, which must cancel. `structured` has
    heavy columns, several of them the last ones, sorted labels, and a few tokens whose label has a
    logit above 100, of which a softmax that does not subtract the maximum makes infinity.

    One mean cannot show everything: errors of opposite sign in different tokens cancel, tokens
    may be swapped freely, and the loss of a single token counts by 1 / T.
    """
    (tokens, width), vocabulary = preset.args["hidden"].shape, preset.args["weight"].shape[1]
    weight = rng.standard_normal((width, vocabulary), np.float32) * np.float32(width**-0.5)
    weight *= np.linspace(0.5, 1.4, width, dtype=np.float32)[:, None]
    hidden = rng.standard_normal((tokens, width), np.float32)
    labels = rng.integers(0, vocabulary, tokens)
    lean = np.linspace(6, 1.5, -(-tokens // 64))
    rng.shuffle(lean[:-1])
    lean = lean.repeat(64)[:tokens]
    if draw == "structured":
        labels.sort()
        heavy = np.concatenate([rng.integers(0, vocabulary, 4), vocabulary - 1 - np.arange(4)])
        weight[:, heavy] *= np.float32(3)
        loud = rng.integers(0, tokens - 64, 3)
        labels[loud] = heavy[-1]
    columns = weight[:, labels]
    lean = lean.astype(np.float32) / np.square(columns).sum(0)
    hidden += (columns * lean).T
    if draw == "shifted":
        common = rng.standard_normal(width, np.float32) * np.float32(width**-0.5)
        weight += common[:, None]
        hidden += rng.uniform(2, 5, (tokens, 1)).astype(np.float32) * common
    elif draw == "structured":
        column = weight[:, heavy[-1]]
        hidden[loud] += np.float32(110) * column / (column @ column)
    return {"hidden": hidden, "weight": weight, "labels": labels}


register(
    Workload(
        id="cross_entropy",
        number="13p",
        upstream_name="Cross_Entropy",
        family="loss",
        model="Llama-3.1-8B",
        summary=(
            "Mean cross entropy of the tokens' labels under the softmax of hidden @ weight: one "
            "float32 scalar."
        ),
        reference=cross_entropy,
        shapes=lambda s: {
            "hidden": ArraySpec((s["T"], s["H"]), "bfloat16"),
            "weight": ArraySpec((s["H"], s["V"]), "bfloat16"),
            "labels": ArraySpec((s["T"],), "int32"),
        },
        sizes={
            "v6e": {"T": 8192, "H": 4096, "V": 128256},
            "tiles": {"T": 1024, "H": 1024, "V": 2048},
            "varied": {"T": 384, "H": 192, "V": 1536},
        },
        published_names={"batch_tokens": "T", "hidden_dim": "H", "vocab_size": "V"},
        generate=_generate_cross_entropy,
        flops=lambda s: 2 * s["T"] * s["H"] * s["V"],
        flops_useful=lambda s: 2 * s["T"] * s["H"] * s["V"],
        # A mean of rounded numbers is far more exact than each of them.
        tolerance=Tolerance(rel=2e-3, floor=1.5e-3),
    )
)
