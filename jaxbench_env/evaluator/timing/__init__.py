"""Predicts the time of a compiled TPU program by replaying its final VLIW schedule.

    prediction = predict(Path("dump"))
    prediction.ms, prediction.uncertain, prediction.reasons

The folder is what libtpu writes with `--xla_jf_dump_to=DIR --xla_jf_dump_llo_text=true
--xla_jf_dump_llo_pass_label_regex=.*final_bundles.*`. The scalar unit is replayed exactly, vector
and matrix work is one cycle a bundle, as scheduled, and a small model of DMAs and HBM decides how
long each wait lasts. No TPU and no JAX are needed.

The way of a listing, and where to read on: `bundles` parses text into `listing`; `program` finds
basic blocks and live values, and `lowering` compiles a block to Python (`effects` says what an
instruction reads and writes); `machine` holds memory, flags and DMAs; `steady` runs the blocks and
skips what is proved to repeat (`values` has the numbers that prove it); `predict` makes time,
counters and reasons of that, with `hlo` for programs that have no listing.
"""

from jaxbench_env.evaluator.timing.constants import Constants
from jaxbench_env.evaluator.timing.errors import TimingError
from jaxbench_env.evaluator.timing.feeds import Kernel, from_blobs, match, to_blobs
from jaxbench_env.evaluator.timing.hlo import kernel_hash
from jaxbench_env.evaluator.timing.loops import Loop
from jaxbench_env.evaluator.timing.predict import Prediction, ProgramTime, predict, read_module
from jaxbench_env.evaluator.timing.record import Recorder
from jaxbench_env.evaluator.timing.timeline import chrome_trace

__all__ = [
    "Constants",
    "Kernel",
    "Loop",
    "Prediction",
    "ProgramTime",
    "Recorder",
    "TimingError",
    "chrome_trace",
    "from_blobs",
    "kernel_hash",
    "match",
    "predict",
    "read_module",
    "to_blobs",
]
