"""Cross entropies of fewer tokens, columns or features, or of other labels, must fail.

All is judged by one number, so each mistake here must move the mean by more than the tolerance.
Mistakes that leave the mean as it is (tokens in another order) are beyond it.
"""

import numpy as np
import pytest
from test_degenerate_conv import (
    accepted,
    cases,
    exact,
    excess,
    ignoring_inputs,
    xla_excess,
)

# The invariants of all workloads and test_degenerate.py stand for these in the fast suite.
pytestmark = pytest.mark.slow

every = pytest.mark.parametrize("case", cases("cross_entropy", seeds=(0, 1)), ids=str)


def _logsumexp(z):
    peak = z.max(1)
    return peak + np.log(np.exp(z - peak[:, None]).sum(1))


def _parts(case):
    """Logits, labels and loss of each token, in float64."""
    hidden, weight, labels = exact(case).values()
    z = hidden.astype(np.float64) @ weight.astype(np.float64)
    return z, labels, _logsumexp(z) - z[np.arange(len(z)), labels]


@every
def test_honest_results_pass(case):
    assert xla_excess(case) <= 0.7
    assert excess(case, _parts(case)[2].mean()) <= 0.05


@every
def test_rounded_logits_pass(case):
    """A kernel may round its logits to bfloat16, as the published function does."""
    import ml_dtypes

    z, labels, _ = _parts(case)
    z = z.astype(ml_dtypes.bfloat16).astype(np.float64)
    assert excess(case, (_logsumexp(z) - z[np.arange(len(z)), labels]).mean()) <= 0.5


@every
def test_constant_results_fail(case):
    columns = exact(case)["weight"].shape[1]
    outs = {"zero": 0, "one": 1, "log V": np.log(columns), "log V + 0.8": np.log(columns) + 0.8}
    assert not accepted(case, outs)


@every
def test_ignoring_an_input_fails(case):
    assert not accepted(case, ignoring_inputs(case))


@every
def test_other_labels_fail(case):
    z, labels, _ = _parts(case)
    tokens, columns = np.arange(len(z)), z.shape[1]
    wrong = {
        "next token": np.roll(labels, 1),
        "next column": (labels + 1) % columns,
        "reversed": labels[::-1],
        "first": np.zeros_like(labels),
        "most likely": z.argmax(1),
        "within the block of columns": labels % 128,
        "last stretch wrong": np.where(tokens < len(z) - 64, labels, 0),
    }
    total = _logsumexp(z)
    outs = {name: (total - z[tokens, label]).mean() for name, label in wrong.items()}
    outs["no labels"] = total.mean()
    outs["mean logit"] = (total - z.mean(1)).mean()
    assert not accepted(case, outs)


@every
def test_a_block_of_columns_left_out_fails(case):
    z, labels, _ = _parts(case)
    labelled, outs = z[np.arange(len(z)), labels], {}
    for start in range(0, z.shape[1], 128):
        kept = np.delete(z, np.s_[start : start + 128], axis=1)
        outs[f"columns from {start}"] = (_logsumexp(kept) - labelled).mean()
        twice = np.concatenate([z, z[:, start : start + 128]], axis=1)
        outs[f"columns from {start} twice"] = (_logsumexp(twice) - labelled).mean()
    # A last tile that is filled up with zero columns instead of masked.
    padded = np.concatenate([z, np.zeros((len(z), 512))], axis=1)
    outs["padding counted"] = (_logsumexp(padded) - labelled).mean()
    outs["largest only"] = (z.max(1) - labelled).mean()
    assert not accepted(case, outs)


@every
def test_tokens_left_out_fail(case):
    loss = _parts(case)[2]
    outs = {"last token": loss[:-1].sum() / len(loss), "sum": loss.sum()}
    for start in range(0, len(loss), 64):
        rest = np.delete(loss, np.s_[start : start + 64])
        outs[f"tokens from {start}"] = rest.sum() / len(loss)
    ends = {"first": loss[:64], "last": loss[-64:], "but the last": loss[:-64]}
    outs |= {f"mean of {name}": part.mean() for name, part in ends.items()}
    assert not accepted(case, outs)


@every
def test_other_sums_fail(case):
    hidden, weight, labels = exact(case).values()
    z, _, loss = _parts(case)
    short = hidden[:, :-2] @ weight[:-2]
    tokens = np.arange(len(z))
    outs = {
        "last 1 % of the features left out": (_logsumexp(short) - short[tokens, labels]).mean(),
        "logarithm of base two": loss.mean() / np.log(2),
        "probability": -np.exp(-loss).mean(),
        "logarithm of the mean probability": -np.log(np.exp(-loss).mean()),
        "negative": -loss.mean(),
        "no exponential": (np.log(np.abs(z).sum(1)) - z[tokens, labels]).mean(),
    }
    if case[1] == "structured":
        with np.errstate(over="ignore"):
            overflown = np.log(np.exp(z.astype(np.float32)).sum(1))
        outs["maximum not subtracted"] = (overflown - z[tokens, labels]).mean()
    assert not accepted(case, outs)
